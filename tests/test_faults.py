"""Whole runs with checkpoints on two ranks, one of which is killed, stopped or out of disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from examples.kills import kill_often
from fault_ranks import STEPS, STRUCK_AT
from placer.errors import ExecutionError
from placer.runtime.checkpoint import latest
from placer.runtime.launch import launch_module

SECONDS = 150.0


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


def test_torchrun_restarts_all_ranks_and_they_go_on_from_the_last_complete_checkpoint(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    folder.mkdir()
    launch_module(("fault_ranks", "none", str(whole)), 2, SECONDS)
    ended = restarted(folder, "kill", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    assert ended.returncode == 0, ended.stderr
    expected = json.loads((whole / "rank0.json").read_text())[1:]
    for rank in range(2):
        first, *losses = json.loads((folder / f"rank{rank}.json").read_text())
        assert first == STRUCK_AT - 1 and losses == expected[first:]


def test_a_stopped_rank_is_named_and_nothing_half_written_is_taken_for_complete(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError) as caught:
        launch_module(("fault_ranks", "stop", str(tmp_path)), 2, SECONDS)
    assert "rank 1 did not answer: it hangs" in str(caught.value)
    found = latest(tmp_path / "checkpoints")
    assert found is not None and found.name == f"step-{STRUCK_AT - 1:08d}"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_full_disk_of_one_rank_ends_all_and_the_older_checkpoints_stay(tmp_path: Path, mode: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        launch_module(("fault_ranks", "fill", str(tmp_path), mode), 2, SECONDS)
    assert "rank 1: " in str(caught.value) and "File too large" in str(caught.value)
    assert "goes on from the last complete checkpoint" in str(caught.value)
    assert names(tmp_path) == [f"step-{step:08d}" for step in (STRUCK_AT - 2, STRUCK_AT - 1)]
    launch_module(("fault_ranks", "none", str(tmp_path)), 2, SECONDS)
    first, *losses = json.loads((tmp_path / "rank0.json").read_text())
    assert first == STRUCK_AT - 1 and len(losses) == STEPS - first


def test_runs_that_are_killed_at_random_end_bit_for_bit_as_undisturbed_ones() -> None:
    threads = torch.get_num_threads()
    tally = kill_often(3, seed=1)
    torch.set_num_threads(threads)
    assert sum(tally.kills.values()) == 3 and tally.compared >= 1
    assert tally.wrong == []
