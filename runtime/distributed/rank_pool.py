"""RankPool: processes that stay and run one function after another as the ranks of a gloo world.

Importing torch and transformers and capturing a model take seconds per process. Ranks are therefore forked from this
one at the first run and know what it had imported and captured by then. For checks of many plans on one machine's CPU.

`serve` is what each process does and `run_on` what is asked of several: also of processes that were started elsewhere.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
from types import TracebackType
from typing import TypeVar, cast

import torch
from torch import distributed as dist
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from placer.errors import ExecutionError
from placer.io.processes import COLLECT_EVERY, die_with_parent

T = TypeVar("T")

# Ranks capture and import at their own pace on a machine with few cores; nothing else may hold one back this long.
_PEER_SECONDS = 300.0
# What is left to the other ranks to notice that one has failed.
_GRACE_SECONDS = 10.0


class UnmetError(Exception):
    """The ranks of a run could not be connected; what they were to do has not begun."""


class RankPool:
    """Up to `size` ranks. `run(n, function, *args)` calls `function(*args)` on n of them and gives their results.

    After `close()` the next run forks them anew: do so when this process has learnt something that they should know.
    They end with this process, however it ends.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranks: list[tuple[BaseProcess, Connection]] = []

    def run(self, ranks: int, function: Callable[..., T], *args: object, timeout: float = 120.0) -> list[T]:
        """The results by rank. Raises ExecutionError with the tracebacks of ranks that failed, or naming those that did
        not come back in `timeout` seconds; the processes are then started anew for the next call."""
        if ranks > self.size:
            raise ExecutionError(f"{ranks} ranks were asked for, the pool has {self.size}")
        try:
            return self._run(ranks, function, *args, timeout=timeout)
        except ExecutionError as error:
            # Once in thousands of runs gloo drops a connection as ranks meet: nothing has been computed then.
            if UnmetError.__name__ not in str(error):
                raise
        return self._run(ranks, function, *args, timeout=timeout)

    def _run(self, ranks: int, function: Callable[..., T], *args: object, timeout: float) -> list[T]:
        self._start()
        try:
            return run_on([connection for _, connection in self._ranks[:ranks]], function, *args, timeout=timeout)
        except ExecutionError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes. They are idle, or stuck: neither has anything to finish."""
        for process, connection in self._ranks:
            connection.close()
            process.kill()
        for process, _ in self._ranks:
            process.join()
        self._ranks = []

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        if self._ranks:
            return
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("fork")
        for _ in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_forked, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))


def run_on(
    connections: Sequence[Connection], function: Callable[..., T], *args: object, timeout: float = 120.0
) -> list[T]:
    """The results of `function(*args)` on the processes that serve these connections, ranks in this order.

    Raises ExecutionError with the tracebacks of ranks that failed, or naming those that did not come back in `timeout`
    seconds; their processes may be stuck then.
    """
    ranks = len(connections)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        for rank, connection in enumerate(connections):
            connection.send((function, args, rank, ranks, store))
        answers, failures = _answers(connections, timeout)
    if failures or len(answers) < ranks:
        late = [rank for rank in range(ranks) if rank not in answers and rank not in failures]
        told = "\n".join(f"rank {rank}:\n{text}" for rank, text in failures.items())
        raise ExecutionError(told or f"ranks {late} did not come back within {timeout:.0f} s")
    return [cast(T, answers[rank]) for rank in range(ranks)]


def serve(connection: Connection) -> None:
    """Run what `run_on` sends until nobody is left to send."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        # Otherwise a thread of gloo that a message wakes takes the core from the one that sends, which holds the lock
        # that both need: with more ranks than cores a tenth of their time goes into that.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # What was imported and captured before the fork stays: the collector need not go through all of it again and again.
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
    while True:
        try:
            function, args, rank, ranks, store = connection.recv()
        except EOFError:
            return
        answer: tuple[bool, object]
        try:
            answer = (True, _in_world(function, args, rank, ranks, store))
        except BaseException:
            answer = (False, traceback.format_exc())
        # Each process group of the run that ended has threads that wake a hundred times a second until it is collected.
        # That reads the file of its store, which is there until all ranks have answered.
        gc.collect()
        try:
            connection.send(answer)
        except (TypeError, AttributeError, PicklingError):  # what cannot be sent: the reason is sent instead
            connection.send((False, traceback.format_exc()))


def _answers(connections: Sequence[Connection], timeout: float) -> tuple[dict[int, object], dict[int, str]]:
    answers: dict[int, object] = {}
    failures: dict[int, str] = {}
    rank_of = {connection: rank for rank, connection in enumerate(connections)}
    deadline = time.monotonic() + timeout
    while rank_of and time.monotonic() < deadline:
        for connection in wait(list(rank_of), timeout=max(0.0, deadline - time.monotonic())):
            assert isinstance(connection, Connection)
            rank = rank_of.pop(connection)
            try:
                ended, value = connection.recv()
            except EOFError:
                ended, value = False, "the process ended"
            if ended:
                answers[rank] = value
            else:
                failures[rank] = value
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    return answers, failures


def _forked(connection: Connection) -> None:
    # The connection alone does not tell: ranks that were forked later hold its other end too.
    die_with_parent()
    serve(connection)


def _in_world(function: Callable[..., T], args: tuple[object, ...], rank: int, ranks: int, store: str) -> T:
    if ranks == 1:
        return function(*args)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=_PEER_SECONDS)
        )
    except RuntimeError as error:
        raise UnmetError(str(error)) from error
    # torch 2.13 numbers the groups of every world from 0, and DTensor remembers results with their meshes' groups:
    # tests/runtime/test_runtime_meshes.py notices (checkpoints) where those of an earlier world come up again.
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # torch does not type it
    try:
        result = function(*args)
        dist.barrier()
        return result
    finally:
        # Also after an error: peers that wait for this rank then fail at once.
        if dist.is_initialized():
            dist.destroy_process_group()
