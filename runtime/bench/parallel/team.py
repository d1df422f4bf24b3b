"""Team: processes of one engine that stay, in a world that they join once: DeepSpeed, TensorFlow and Horovod keep
theirs for the life of a process, so that they cannot be forked like the ranks of a `RankPool`, nor change worlds.

They are begun with the first run, as new interpreters that import what they need; asked and answered as `run_on` does.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from placer.errors import ExecutionError
from placer.io.processes import die_with_parent
from placer.runtime.distributed.rank_pool import run_on

T = TypeVar("T")

# TensorFlow prints what it finds on the machine, on every process; Gloo listens on the loopback interface only; threads
# that wait for work take no core from others.
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE",
}  # fmt: skip


class Team:
    """`size` processes of a world of `WORLDS`, with `threads` each."""

    def __init__(self, world: str, size: int, threads: int = 1) -> None:
        self.world, self.size, self.threads = world, size, threads
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ranks: list[tuple[BaseProcess, Connection]] = []

    def run(self, ranks: int, function: Callable[..., T], *args: object, timeout: float = 120.0) -> list[T]:
        """As `RankPool.run`, always on all of them."""
        self._start()
        try:
            return run_on([connection for _, connection in self._ranks], function, *args, timeout=timeout)
        except ExecutionError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes, which are idle or stuck."""
        for process, connection in self._ranks:
            connection.close()
            process.kill()
        for process, _ in self._ranks:
            process.join()
        self._ranks = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        if self._ranks:
            return
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        with _environment({**ENVIRONMENT, "OMP_NUM_THREADS": str(self.threads)}):
            for rank in range(self.size):
                ours, theirs = context.Pipe()
                given = (theirs, self.world, rank, self.size, self._folder.name)
                process = context.Process(target=_member, args=given, daemon=True)
                process.start()
                theirs.close()
                self._ranks.append((process, ours))


def _member(connection: Connection, world: str, rank: int, ranks: int, folder: str) -> None:
    die_with_parent()
    serve(connection, world, rank, ranks, folder)


def serve(connection: Connection, world: str, rank: int, ranks: int, folder: str) -> None:
    """Run what `run_on` sends, in a world that is joined before the first, until nobody is left to send."""
    joined = False
    while True:
        try:
            function, args, *_ = connection.recv()
        except EOFError:
            return
        answer: tuple[bool, object]
        try:
            if not joined:
                from placer.runtime.bench.parallel.worlds import WORLDS  # which imports torch

                WORLDS[world](rank, ranks, Path(folder))
                joined = True
            answer = (True, function(*args, rank=rank))
        except BaseException:
            answer = (False, traceback.format_exc())
        gc.collect()
        connection.send(answer)


@contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    """Variables that processes begin with."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
