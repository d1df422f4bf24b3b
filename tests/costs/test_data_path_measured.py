"""Measured data paths: the grid has no near ties, predictions are the flow's, a verdict follows from reliefs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as File

import pytest

from examples.data_path.measured import throttle
from examples.data_path.measured.__main__ import main
from examples.data_path.measured.grid import MARGIN, grid
from examples.data_path.measured.parts import Disk, Format
from examples.data_path.measured.paths import Part, Path, bottleneck, predicted
from examples.data_path.measured.picture import draw
from examples.data_path.measured.verdict import Outcome, mean_error
from placer.errors import UsageError
from placer.runtime.data.shards.measuring import MeasuredData
from placer.runtime.data.shards.measuring import predicted as predicted_loader

DISK = Disk(latency_seconds=0.0001, read_bandwidth=1e9, memory_bandwidth=10e9)
JPEG = Format(
    name="jpeg shards", samples=800, at_random=False, stored_bytes=100_000, decoded_bytes=150_000, core_seconds=0.002
)
JPEG_FILES = replace(JPEG, name="jpeg files", at_random=True)
ARRAYS = replace(JPEG, name="npy files", at_random=True, stored_bytes=150_000, core_seconds=0.0001)
FORMATS = (JPEG, JPEG_FILES, ARRAYS)


def test_the_grid_has_every_format_number_of_workers_and_bottleneck_and_enough_paths() -> None:
    paths = grid(FORMATS, DISK)
    assert len(paths) >= 12
    assert {path.format.name for path in paths} == {one.name for one in FORMATS}
    assert {path.workers for path in paths} == {0, 1, 2}
    assert {bottleneck(predicted(path, DISK)) for path in paths} == {"storage", "workers", "cores"}
    assert any(path.requests_per_second for path in paths)


def test_no_path_of_the_grid_is_near_a_tie() -> None:
    for path in grid(FORMATS, DISK):
        storage = path.requests_per_second or (path.bytes_per_second or 0) / path.format.stored_bytes
        waited = DISK.latency_seconds + path.format.stored_bytes / DISK.read_bandwidth if path.format.at_random else 0
        process = path.processes / (waited + path.format.core_seconds)
        first, second, *_ = sorted([storage, process, path.cores / path.format.core_seconds])
        assert second > (1 + MARGIN) * first


def test_predicted_are_the_throttle_the_processes_and_the_cores_whichever_passes_least() -> None:
    throttled = Path(format=JPEG_FILES, workers=1, cores=2, bytes_per_second=20e6)
    assert predicted(throttled, DISK).samples_per_second == pytest.approx(20e6 / 100_000)
    free = replace(throttled, bytes_per_second=None)
    alone = 0.0001 + 100_000 / 1e9 + 0.002
    assert predicted(free, DISK).samples_per_second == pytest.approx(1 / alone)
    # Without workers each sample takes its time on the device besides, here a microsecond.
    assert predicted(replace(free, workers=0), DISK).samples_per_second == pytest.approx(1 / (alone + 1e-6))
    assert predicted(replace(free, workers=2, cores=1), DISK).samples_per_second == pytest.approx(1 / 0.002)
    few = replace(free, requests_per_second=50)
    assert predicted(few, DISK).samples_per_second == pytest.approx(50)
    assert bottleneck(predicted(few, DISK)) == "storage"


@pytest.mark.parametrize("part", ["storage", "workers", "cores"])
def test_what_binds_is_predicted_to_pass_more_when_it_is_relieved_and_nothing_else(part: Part) -> None:
    bytes_per_second = {"storage": 10e6, "workers": 200e6, "cores": 200e6}[part]
    path = Path(
        format=JPEG_FILES,
        workers=1 if part == "workers" else 2,
        cores=1 if part == "cores" else 2,
        bytes_per_second=bytes_per_second,
    )
    before = predicted(path, DISK)
    assert bottleneck(before) == part
    assert predicted(path.relieved(part), DISK).samples_per_second > 1.5 * before.samples_per_second
    parts: tuple[Part, ...] = ("storage", "workers", "cores")
    for other in (one for one in parts if one != part):
        assert predicted(path.relieved(other), DISK).samples_per_second == pytest.approx(before.samples_per_second)


def outcome(bottleneck: Part, **relieved: float) -> Outcome:
    parts: tuple[Part, ...] = ("storage", "workers", "cores")
    return Outcome(
        path=Path(format=JPEG, workers=1, cores=2),
        predicted=110,
        bottleneck=bottleneck,
        measured=100,
        relieved=tuple((part, relieved[part]) for part in parts if part in relieved),
    )


def test_what_binds_is_the_part_whose_relief_gives_much_more_than_that_of_the_others() -> None:
    assert outcome("storage", storage=180, workers=104).right
    assert outcome("cores", storage=97, workers=88, cores=160).right
    assert outcome("workers", storage=180, workers=104).real == "storage"
    assert outcome("storage", storage=150, workers=140).real is None  # both give alike
    assert outcome("storage", storage=110, workers=99).real is None  # neither gives much


def test_the_error_is_the_mean_of_what_predictions_are_off_by() -> None:
    high = outcome("storage", storage=180, workers=104)
    low = replace(high, predicted=80)
    assert mean_error([high, low]) == pytest.approx((0.10 + 0.20) / 2)


def test_paths_are_drawn(tmp_path: File) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs placer-planner[plot]")
    draw([outcome("storage", storage=180, workers=104), outcome("workers", storage=180)], tmp_path / "paths.svg")
    text = (tmp_path / "paths.svg").read_text()
    assert "binds: storage" in text
    assert "does not: workers" in text


def test_a_folder_in_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="on no block device"):
        throttle.block_device(File("/proc"))


def test_where_storage_cannot_be_throttled_the_command_says_what_is_missing(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(throttle, "cgroup_controller", lambda name: None)
    assert main(["--folder", str(tmp_path)]) == 2
    assert "blkio controller of cgroup v1" in capsys.readouterr().err
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["--folder", str(tmp_path)]) == 2
    assert "it takes root" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "workers", "seconds"),
    # 2 ms of reading, 10 ms of a core, on two cores.
    [
        ("tar shards", 0, 0.010), ("tar shards", 1, 0.010), ("tar shards", 4, 0.005),
        ("single files", 0, 0.012), ("single files", 1, 0.012), ("single files", 2, 0.006), ("single files", 4, 0.005),
        ("tar shards", 64, 0.005),
    ],
)  # fmt: skip
def test_a_loader_is_predicted_to_read_shards_ahead_and_files_one_after_the_other(
    kind: str, workers: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    one = MeasuredData(
        folder="x", format=kind, samples=1, stored_bytes=1, decoded_bytes=1, read_seconds=0.002, core_seconds=0.010,
        loaders=(),
    )  # fmt: skip
    assert predicted_loader(one, workers) == pytest.approx(1 / seconds)
