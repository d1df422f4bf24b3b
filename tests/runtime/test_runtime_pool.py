"""Ranks that stay end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.in_turns

PROGRAM = """
import os, time
from placer.runtime.distributed.rank_pool import RankPool
pool = RankPool(3)
print(*pool.run(3, os.getpid), flush=True)
time.sleep(600)
"""

# The first connection of a world of two is dropped, as gloo does once in thousands of runs.
DROPPING = """
import os, pathlib, sys
import torch.distributed as dist
from placer.runtime.distributed.rank_pool import RankPool
told, meet = pathlib.Path(sys.argv[1]), dist.init_process_group
def dropped(*args, **kwargs):
    if kwargs["rank"] == 0 and not told.exists():
        told.touch()
        raise RuntimeError("Gloo connectFullMesh failed: connection closed by peer")
    return meet(*args, **kwargs)
dist.init_process_group = dropped
with RankPool(2) as pool:
    print(len(pool.run(2, os.getpid)))
"""


def alive(process: int) -> bool:
    """Whether a process runs still; one that ended and was not asked about counts as ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_no_rank_outlives_the_process_that_started_it(checkout: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        ranks = [int(word) for word in parent.stdout.readline().split()]
        assert len(ranks) == 3 and all(map(alive, ranks))
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 1800
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, ranks))


def test_ranks_that_were_not_connected_are_started_once_more(checkout: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    run = [sys.executable, "-c", DROPPING, str(tmp_path / "told")]
    ended = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert (ended.stdout.split(), (tmp_path / "told").exists()) == (["2"], True), ended.stderr
