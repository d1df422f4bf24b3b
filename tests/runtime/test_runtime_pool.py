"""Ranks that stay end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import os, time
from placer.runtime.distributed.rank_pool import RankPool
pool = RankPool(3)
print(*pool.run(3, os.getpid), flush=True)
time.sleep(600)
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
    deadline = time.monotonic() + 60
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, ranks))
