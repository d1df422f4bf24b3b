"""Seconds by category, saved bytes, logs: what a run measures and writes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from placer.errors import PlacerError, UsageError
from placer.plans.ledger import Seconds
from placer.runtime.measuring.memory import SavedTensors, local_bytes
from placer.runtime.measuring.seconds import Clock, Events, Wait, apart, median_seconds
from placer.runtime.training.logs import open_logs


def test_nested_time_is_taken_out_of_the_outer_category_and_all_adds_up() -> None:
    clock = Clock()
    clock.start()
    begun = time.perf_counter()
    with clock.during("backward"):
        time.sleep(0.02)
        with clock.during("recompute"):
            entered = time.perf_counter()
            time.sleep(0.05)
            inside = time.perf_counter() - entered
    around = time.perf_counter() - begun
    time.sleep(0.03)
    seconds = clock.stop()
    # However long sleeps take: what was inside is told once.
    assert 0.02 <= seconds.backward <= around - inside and inside <= seconds.recompute <= around - 0.02
    assert seconds.other >= 0.03
    assert seconds.total == pytest.approx(seconds.backward + seconds.recompute + seconds.other)


def test_what_follows_the_last_reduction_beside_a_backward_is_exposed_and_not_what_a_recompute_takes() -> None:
    clock = Clock()
    clock.start()
    with clock.during("backward"):
        clock.reduces()
        with clock.during("recompute"):
            time.sleep(0.03)
        time.sleep(0.02)
        clock.reduces()
        time.sleep(0.05)
    with clock.during("backward"):
        time.sleep(0.02)
    seconds = clock.stop()
    assert seconds.reduction >= 0.05 and seconds.recompute >= 0.03 and seconds.backward >= 0.04
    assert seconds.total == pytest.approx(seconds.backward + seconds.recompute + seconds.reduction + seconds.other)


def test_a_process_that_is_held_up_as_a_backward_ends_counts_no_second_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1000))  # whoever asks for the time is a second later than the last one
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(moments)))
    clock = Clock()
    clock.start()
    with clock.during("backward"):
        clock.reduces()
    seconds = clock.stop()
    assert (seconds.backward, seconds.reduction) == (1.0, 1.0)


def test_one_disturbed_step_does_not_show_in_the_median() -> None:
    steps = [Seconds(forward=1.0)] * 7 + [Seconds(forward=100.0)]
    assert median_seconds(steps).forward == 1.0


def test_saved_bytes_are_counted_once_until_backward_frees_them() -> None:
    rows, width = 6, 32
    layer = nn.Linear(width, width, bias=False)
    x = torch.randn(rows, width, requires_grad=True)
    saved = SavedTensors(layer.parameters())
    with saved.watching():
        y = (layer(x) * x).exp()  # keeps x (twice, one storage), the product's factor and its own result
        assert saved.alive == 3 * rows * width * 4
        y.sum().backward()
    del y
    assert saved.alive == 0 and saved.peak == 3 * rows * width * 4


def test_views_of_one_storage_count_once() -> None:
    base = torch.zeros(10, dtype=torch.float64)
    assert local_bytes([base, base[2:], torch.zeros(3)]) == 10 * 8 + 3 * 4


def test_waiting_for_a_late_peer_is_bubble_and_the_rest_communication() -> None:
    sender = Events(sent=(((0, 1, 7), 10.0),))
    receiver = Events(received=(((0, 1, 7), Wait(began=8.0, ended=10.5)),))
    seconds = apart(Seconds(communication=2.5), receiver, (sender, receiver))
    assert (seconds.bubble, seconds.communication) == (2.0, 0.5)


def test_a_collective_waits_for_its_last_rank() -> None:
    early = Events(collectives=((((0, 1), 0), Wait(began=1.0, ended=4.0)),))
    late = Events(collectives=((((0, 1), 0), Wait(began=3.0, ended=4.0)),))
    assert apart(Seconds(reduction=3.0), early, (early, late)) == Seconds(reduction=1.0, bubble=2.0)
    assert apart(Seconds(reduction=1.0), late, (early, late)) == Seconds(reduction=1.0)


def test_the_log_is_one_json_object_per_event_and_a_second_run_appends(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for step in (1, 2):
        logs = open_logs(jsonl=str(path), tensorboard="", steps=2, progress=False)
        logs.write("step", step, {"loss": 0.5, "step_seconds": 1.0})
        logs.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0] == {"event": "step", "step": 1, "loss": 0.5, "step_seconds": 1.0}


def test_progress_on_a_pipe_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs = open_logs(jsonl="", tensorboard="", steps=3, progress=True)
    logs.write("step", 1, {"loss": 0.123456, "mfu": None})
    assert capsys.readouterr().err == "step 1/3  loss 0.1235\n"


def test_a_log_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist; create it first"):
        open_logs(jsonl=str(tmp_path / "no" / "log.jsonl"), tensorboard="", steps=1, progress=False)


def test_a_log_that_a_full_disk_does_not_take_is_named() -> None:
    logs = open_logs(jsonl="/dev/full", tensorboard="", steps=1, progress=False)
    with pytest.raises(PlacerError, match="the log /dev/full could not be written behind step 1: No space left"):
        logs.write("step", 1, {"loss": 1.0})
    logs.close()


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logs = open_logs(jsonl="", tensorboard=str(tmp_path), steps=1, progress=False)
    logs.write("step", 1, {"loss": 0.5, "note": "text"})
    logs.close()
    assert any(path.stat().st_size > 0 for path in tmp_path.iterdir())


def test_tensorboard_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    with pytest.raises(UsageError, match=r"placer-planner\[report\]"):
        open_logs(jsonl="", tensorboard=str(tmp_path), steps=1, progress=False)
