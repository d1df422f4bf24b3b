"""Clusters of namespaces, shaped links and quotas: a plan runs across their nodes, and nothing of them stays.

python -m examples.measured.emulated is the whole table.
"""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples.measured.emulated.__main__ import main, rank_correlation
from examples.measured.emulated.machines import Machines, Node
from examples.measured.emulated.ranks import Ranks
from examples.measured.emulated.slowing import link_bytes, work_share
from examples.measured.emulated.system import NAME, Emulated
from examples.measured.emulated.tasks import step_seconds, verified
from examples.parity.cases import Case, plan_of
from examples.parity.models import TEXT
from placer.errors import UsageError
from placer.runtime import VerifyReport

MACHINES = Machines(name="two", nodes=(Node(share=0.5, megabits=200), Node(share=0.25, megabits=100)))
CASE = Case(model="examples.parity.models:words", shapes=TEXT, positions=2, cut=1, microbatches=(4, 4))


def test_what_the_system_lacks_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["--cluster", "nodes"]) == 2
    assert "clusters cannot be emulated here: " in capsys.readouterr().err


def test_an_unequal_pipeline_runs_across_emulated_nodes_and_nothing_stays() -> None:
    with ExitStack() as stack:
        try:
            emulated = stack.enter_context(Emulated(MACHINES))
        except UsageError as error:
            pytest.skip(str(error))
        ranks, plan = stack.enter_context(Ranks(emulated)), plan_of(CASE)
        groups = [emulated.group(device) for device in (1, 0)]
        report = ranks.run([1, 0], verified, plan, timeout=1800)[0]
        assert isinstance(report, VerifyReport) and report.passed, report
        brakes = tuple(zip(groups, (0.25, 0.5), strict=True))
        timings = ranks.run([1, 0], step_seconds, plan, brakes, 2, timeout=1800)
        assert [len(own) for own in timings] == [2, 2]
        assert [_quota(group) for group in groups] == [-1, -1], "the brakes are off again"
    assert not any(group.exists() for group in groups)
    assert NAME not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_work_and_bytes_of_a_node_are_those_of_its_ranks() -> None:
    plan = plan_of(CASE)
    assert work_share(plan, 0) == 1.0, "all devices are in one node"
    assert link_bytes(plan, 0) == 0.0, "nothing leaves it"


def test_the_rank_correlation_is_of_orders() -> None:
    assert rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 900.0]) == 1.0
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0


def _quota(group: Path) -> int:
    return int((group / "cpu.cfs_quota_us").read_text())
