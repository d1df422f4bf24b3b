"""Whole runs with checkpoints on two ranks, one of which is killed, stopped or out of disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from examples.parity.kills import LIMIT_SECONDS, kill_often
from fault_ranks import STEPS, STRUCK_AT
from placer.errors import ExecutionError
from placer.runtime.checkpoint.folder import latest
from placer.runtime.distributed.launch import launch_module

pytestmark = pytest.mark.in_turns

SECONDS = 1800.0


def names(folder: Path) -> list[str]:
    """What lies in the checkpoint folder."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def restarted(folder: Path, fault: str, *torchrun: str) -> subprocess.CompletedProcess[str]:
    """`fault_ranks` under torchrun as a person starts it, with restarts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [*command, *torchrun, "-m", "fault_ranks", fault, str(folder)],
        env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The runs, which mostly wait: all at once. What each raised, and what torchrun itself gave."""

    folder: Path
    raised: dict[str, str]
    restarted: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Started:
    folder = tmp_path_factory.mktemp("runs")
    asked = {
        "whole": ("none",),
        "stop": ("stop",),
        "freeze": ("freeze",),
        "sync": ("fill",),
        "async": ("fill", "async"),
    }
    for name in (*asked, "killed"):
        (folder / name).mkdir()
    with ThreadPoolExecutor(len(asked) + 1) as pool:
        killed = pool.submit(
            restarted, folder / "killed", "kill", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"
        )
        raised = {name: pool.submit(_raised, folder / name, *arguments) for name, arguments in asked.items()}
        return Started(
            folder=folder, raised={name: one.result() for name, one in raised.items()}, restarted=killed.result()
        )


def _raised(folder: Path, fault: str, *mode: str) -> str:
    """What launching `fault` raises; nothing where it ends well."""
    try:
        launch_module(("fault_ranks", fault, str(folder), *mode), 2, SECONDS)
    except ExecutionError as error:
        return str(error)
    return ""


def test_torchrun_restarts_all_ranks_and_they_go_on_from_the_last_complete_checkpoint(runs: Started) -> None:
    assert not runs.raised["whole"]
    assert runs.restarted.returncode == 0, runs.restarted.stderr
    expected = json.loads((runs.folder / "whole" / "rank0.json").read_text())[1:]
    for rank in range(2):
        first, *losses = json.loads((runs.folder / "killed" / f"rank{rank}.json").read_text())
        assert first == STRUCK_AT - 1 and losses == expected[first:]


def test_a_stopped_rank_is_named_and_nothing_half_written_is_taken_for_complete(runs: Started) -> None:
    assert "rank 1 did not answer: it hangs" in runs.raised["stop"]
    found = latest(runs.folder / "stop" / "checkpoints")
    assert found is not None and found.name == f"step-{STRUCK_AT - 1:08d}"


def test_a_rank_that_is_stopped_while_it_writes_is_named_within_the_time_of_a_step(runs: Started) -> None:
    assert "rank 1 did not answer: it hangs, or its disk does" in runs.raised["freeze"]
    assert names(runs.folder / "freeze") == [f"step-{step:08d}" for step in (STRUCK_AT - 2, STRUCK_AT - 1)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_disk_of_one_rank_ends_all_and_the_older_checkpoints_stay(runs: Started, mode: str) -> None:
    folder, found = runs.folder / mode, runs.raised[mode]
    assert "rank 1: " in found and "File too large" in found
    assert "goes on from the last complete checkpoint" in found
    assert names(folder) == [f"step-{step:08d}" for step in (STRUCK_AT - 2, STRUCK_AT - 1)]
    launch_module(("fault_ranks", "none", str(folder)), 2, SECONDS)
    first, *losses = json.loads((folder / "rank0.json").read_text())
    assert first == STRUCK_AT - 1 and len(losses) == STEPS - first


def test_runs_that_are_killed_at_random_end_bit_for_bit_as_undisturbed_ones() -> None:
    threads = torch.get_num_threads()
    # What is claimed is how runs end, not how soon: the machine may be busy.
    tally = kill_often(3, seed=1, limit=20 * LIMIT_SECONDS)
    torch.set_num_threads(threads)
    assert sum(tally.kills.values()) == 3 and tally.compared >= 1
    assert tally.wrong == []
