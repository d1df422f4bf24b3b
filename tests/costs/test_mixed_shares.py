"""The published shares of a CPU worker beside two GPU workers come out of the planner, and are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.measured import mixed_shares


@pytest.mark.in_turns
def test_the_planner_takes_the_published_shares(capsys: pytest.CaptureFixture[str]) -> None:
    assert mixed_shares.main([]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    predicted = {int(rows): float(seconds) for rows, seconds, _ in lines}
    assert min(predicted, key=lambda rows: predicted[rows]) == mixed_shares.CPU_ROWS
    waiting = {int(rows): float(seconds) for rows, _, seconds in lines}
    # Of three pairs each: 2.5 always, 2.3 twice, 1.9 and 1.9 beside 1.4 and 1.8, 1.5 beside 1.4, 1.8 beside 1.5.
    assert waiting[32] == pytest.approx((3 * 2.5 + 2 * 2.3 + 2 * 1.9 + 1.5 + 1.8) / 9, abs=0.005)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "shares.svg"
    mixed_shares.draw([mixed_shares.Share(cpu_rows=32, predicted=1.9, waiting=2.1)] * 2, 32, path)
    assert "<svg" in path.read_text()
