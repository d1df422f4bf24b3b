"""Cases in a process of their own, with a limit of processor seconds and of memory for each.

A worker is a fork of this process, in which placer is imported already; it writes what became of each case into memory
that both see. One that hangs or dies is replaced by another, which goes on after the case that ended it.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from examples.parity.fuzz.verdicts import OUTCOMES, Verdict

SECONDS = 10.0
BYTES = 2**30
# Cases of one worker: what the libraries keep of each is given back with it.
CHUNK = 2_000
_PAUSE = 0.05


def verdicts(run: Callable[[int], Verdict], cases: range, folder: Path) -> Iterator[tuple[int, Verdict]]:
    """The verdict on each case, in order; `run` is called in a worker. Bad ones say why."""
    for start in range(0, len(cases), CHUNK):
        yield from _chunk(run, cases[start : start + CHUNK], folder)


def _chunk(run: Callable[[int], Verdict], cases: range, folder: Path) -> Iterator[tuple[int, Verdict]]:
    done = 0
    with mmap.mmap(-1, len(cases)) as shared:
        while done < len(cases):
            worker = _forked(run, cases, done, shared, folder)
            try:
                ended = _watched(worker, shared)
            except BaseException:  # of an interruption: nothing is left behind
                os.kill(worker, signal.SIGKILL)
                raise
            while done < len(cases) and shared[done]:
                yield cases[done], _written(OUTCOMES[shared[done] - 1] == "accepted", shared[done], folder, cases[done])
                done += 1
            if done < len(cases):
                yield cases[done], ended
                shared[done] = len(OUTCOMES)
                done += 1


def _written(fine: bool, code: int, folder: Path, number: int) -> Verdict:
    outcome = OUTCOMES[code - 1]
    file = folder / f"{number}.verdict"
    if fine or not file.exists():
        return Verdict(outcome=outcome)
    told, sort = json.loads(file.read_text())
    file.unlink()
    return Verdict(outcome=outcome, told=told, sort=sort)


def _forked(run: Callable[[int], Verdict], cases: range, first: int, shared: mmap.mmap, folder: Path) -> int:
    worker = os.fork()
    if worker:
        return worker
    try:
        _limit_memory()
        for index in range(first, len(cases)):
            found = run(cases[index])
            if found.sort:
                (folder / f"{cases[index]}.verdict").write_text(json.dumps((found.told[-6_000:], found.sort)))
            shared[index] = OUTCOMES.index(found.outcome) + 1
        os._exit(0)
    except BaseException:  # of this program, not of what it reads
        traceback.print_exc()
        os._exit(1)


def _limit_memory() -> None:
    most = psutil.Process().memory_info().vms + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _watched(worker: int, shared: mmap.mmap) -> Verdict:
    """Wait for the worker's end, or end it; what that means for the case it was at."""
    process = psutil.Process(worker)
    reached, began = shared.find(b"\0"), 0.0
    while True:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            died = f"the worker ended with status {status}"
            return Verdict(outcome="crash", told=died, sort=died)
        spent = sum(process.cpu_times()[:2])
        at = shared.find(b"\0", reached)
        if at != reached:
            reached, began = at, spent
        elif spent - began > SECONDS:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            return Verdict(outcome="hang", told=f"no end after {SECONDS:.0f} s of a processor", sort="hang")
        time.sleep(_PAUSE)
