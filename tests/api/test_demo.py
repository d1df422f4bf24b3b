"""The demo runs, shows its progress, and fails where the losses differ."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from placer.cli.commands.demo import story
from placer.cli.commands.demo.story import TOLERANCE, DemoOutcome
from placer.cli.commands.running import demo
from placer.runtime.training.run_report import RunReport
from plans import two_stage_plan


def outcome(ours: tuple[float, ...], theirs: tuple[float, ...]) -> DemoOutcome:
    plan = two_stage_plan()
    assert plan.ledger is not None
    report = RunReport(ranks=2, data="made", first_step=0, losses=ours, step_seconds=(0.1,) * len(ours), rows=8)
    return DemoOutcome(plan=plan, report=report, one_device_losses=theirs, simulated=plan.ledger)


def test_equal_losses_match_and_others_do_not() -> None:
    assert outcome((5.0, 4.0), (5.0, 4.0 * (1 + TOLERANCE / 2))).matches
    assert not outcome((5.0, 4.0), (5.0, 4.0 * (1 + TOLERANCE * 2))).matches
    assert not outcome((5.0, float("nan"), 4.0), (5.0, 4.0, 4.0)).matches


def test_the_demo_fails_where_the_losses_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(story, "tell", lambda **_: outcome((5.0,), (4.0,)))
    with pytest.raises(typer.Exit) as ended:
        demo.run(steps=1, keep=None, json=False)
    assert ended.value.exit_code == 1
    assert "DIFFER FROM one device's" in capsys.readouterr().out


def test_fewer_losses_than_one_device_is_no_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = outcome((5.0,), (5.0, 4.0)).matches


@pytest.mark.slow  # .ci/run runs the demo from the wheel, where it compares itself with one device
def test_the_demo_plans_runs_and_equals_one_device(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "placer", "demo", "--steps", "4", "--keep", str(tmp_path / "kept"), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["losses_match"] is True
    assert len(document["losses"]) == len(document["one_device_losses"]) == 4
    assert document["losses"][-1] < document["losses"][0]
    assert document["predicted"]["step_time_seconds"] > 0
    assert document["measured"]["step_time_seconds"] > 0
    for headline in ("1. Capture", "2. Describe", "3. Ask every strategy", "4. The plan", "5. Train", "6. The same"):
        assert headline in done.stderr
    assert json.loads((tmp_path / "kept" / "trace.json").read_text())["traceEvents"]
    assert len((tmp_path / "kept" / "log.jsonl").read_text().splitlines()) >= 4


def test_the_reference_is_not_fooled_by_a_changed_loss() -> None:
    """One changed loss among many is found."""
    losses = tuple(5.0 - 0.1 * step for step in range(10))
    wrong = outcome(losses, losses)
    report = replace(wrong.report, losses=(*losses[:5], losses[5] * 1.001, *losses[6:]))
    assert not replace(wrong, report=report).matches
