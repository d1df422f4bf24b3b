"""`placer bench runtime`: plans beside hand-written torch take turns and train alike."""

from __future__ import annotations

import contextlib
import json
import sys

import pytest

from placer.cli import main
from placer.report.bench.runtime import ratio
from placer.runtime.bench import KINDS, Compared, Size, compared

pytestmark = pytest.mark.in_turns

TINY = Size(hidden=16, layers=2, heads=4, words=32, length=8, rows=4, microbatches=2)


@pytest.mark.parametrize("kind", list(KINDS))
def test_all_contestants_train_alike(kind: str) -> None:
    found: Compared = compared(kind, TINY, rounds=2, steps=1)
    assert [one.name for one in found.times] == ["placer", *KINDS[kind]]
    ours, by_hand, wrapper = (one.losses for one in found.times)
    if kind == "tensor":  # every rank has the loss of the whole batch
        assert by_hand == pytest.approx(ours, rel=1e-4) and wrapper == pytest.approx(ours, rel=1e-4)
    else:  # of its own rows, or on the last rank
        assert by_hand == pytest.approx(wrapper, rel=1e-4)
    assert all(len(one.seconds) == len(one.processor_seconds) == 2 and min(one.seconds) > 0 for one in found.times)


def run(*arguments: str) -> None:
    sys.argv = ["placer", "bench", "runtime", *arguments]
    with contextlib.suppress(SystemExit):
        main()


SMALL = ("--hidden", "16", "--layers", "2", "--length", "8", "--rounds", "2", "--steps", "1")


def test_the_command_prints_a_row_for_each_contestant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run(*SMALL, "--plan", "data", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["contestant"] for row in rows] == ["placer", "by hand", "DDP"]
    assert rows[0]["ratio"] is None and rows[0]["step_time_seconds"] > 0
    assert all(row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"] for row in rows[1:])
    assert rows[1]["share_of_wrapper"]["value"] > 0 and rows[1]["wrapper"] == "DDP"


def test_the_table_says_what_is_compared_with_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run(*SMALL, "--plan", "tensor")
    shown = capsys.readouterr().out
    assert "placer / this" in shown and "DTensor" in shown and "by hand reaches" in shown


@pytest.mark.parametrize(
    ("arguments", "said"), [(("--plan", "magic"), "give one of data, pipeline, tensor"), (("--hidden", "7"), "16")]
)
def test_what_is_not_understood_is_said(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    run(*arguments)
    assert said in capsys.readouterr().err


def test_a_ratio_lies_in_its_interval_and_is_the_same_every_time() -> None:
    ours, theirs = [1.1, 1.0, 1.2, 1.1, 5.0], [1.0, 1.0, 1.1, 1.0, 4.0]
    found = ratio(ours, theirs)
    assert found == ratio(ours, theirs)
    assert found.low <= found.value == 1.1 <= found.high


def test_the_interval_of_alike_turns_is_a_point() -> None:
    found = ratio([2.0] * 5, [1.0] * 5)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)
