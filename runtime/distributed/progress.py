"""Waiting for ranks that write: by their progress, so that a slow disk is waited for and a rank that hangs is not.

A rank counts what it has done (`tick`) in the store of the run; others see the number grow. One that neither ends nor
moves for `patience` seconds hangs, or its disk does. Each rank watches rank 0 and the next two; who finds one says so,
and all end. What one of them failed with reaches every rank; a process that is gone is seen at once by those of its
host.

Turns follow each other: in each all ranks work, or the first one alone. The counter `ended` says how far they are.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # torch exports them unsaid

from placer.errors import ExecutionError
from placer.runtime.distributed.world import World

Tick = Callable[[], None]
T = TypeVar("T")

TICK_SECONDS = 0.2  # a number is not told more often
SOON_SECONDS, LOOK_SECONDS = 0.001, 0.1  # how often a rank that waits looks, at first and later
WATCHED = 2  # the ranks after its own that a rank watches, besides the first


class Turns:
    """Turns of one rank among all; every rank makes one and takes part in the same turns."""

    def __init__(self, store: Store, world: World, patience_seconds: float) -> None:
        self._store, self._world, self._patience = store, world, patience_seconds
        self._turn, self._count, self._told = 0, 0, 0.0

    @staticmethod
    def agreed(world: World, patience_seconds: float, agree: Callable[[Callable[[], str]], str]) -> Turns:
        """Turns under a name that all ranks agree on."""
        name = agree(lambda: uuid.uuid4().hex)
        return Turns(PrefixStore(f"turns/{name}", _store()), world, patience_seconds)

    def tick(self) -> None:
        """Say that there is progress."""
        self._count += 1
        if time.monotonic() - self._told > TICK_SECONDS:
            self._tell(str(self._count))

    def all(self, deed: Callable[[], T]) -> T:
        """Every rank does its `deed`; when all have, its own result. Raises ExecutionError where one fails or hangs."""
        self._begin()
        try:
            done = deed()
        except Exception as error:
            raise ExecutionError(self._fail(error)) from error
        self._end(1)
        self._wait()
        return done

    def first(self, deed: Callable[[], object]) -> None:
        """The first rank does `deed` while the others wait. Raises as `all` does."""
        self._begin()
        if self._world.first:
            try:
                deed()
            except Exception as error:
                self._fail(error)
                raise
            self._end(self._world.size)
        self._wait()

    def _begin(self) -> None:
        self._turn += 1
        self._tell("begun")

    def _end(self, ranks: int) -> None:
        self._tell("ended")
        self._store.add("ended", ranks)

    def _fail(self, error: Exception) -> str:
        """Tell the others what this rank failed with."""
        text = f"rank {self._world.rank}: {type(error).__name__}: {error}".split("\n")[0]
        self._store.set("failed", text)
        return text

    def _tell(self, what: str) -> None:
        self._told = time.monotonic()
        self._store.set(f"at/{self._world.rank}", f"{self._turn} {what}")

    def _wait(self) -> None:
        """Until the turn has ended."""
        seen: dict[int, tuple[str, float]] = {}
        pause = SOON_SECONDS
        while self._store.add("ended", 0) < self._turn * self._world.size:
            self._require_none_failed()
            self._require_progress(seen)
            time.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS)

    def _require_none_failed(self) -> None:
        if self._store.check(["failed"]):
            raise ExecutionError(self._store.get("failed").decode())
        if self._world.watch is not None and self._world.watch.failed():
            raise dist.DistError("Connection closed: a rank ended while the others waited for it")

    def _require_progress(self, seen: dict[int, tuple[str, float]]) -> None:
        now = time.monotonic()
        for rank in self._watched():
            at = self._store.get(f"at/{rank}").decode() if self._store.check([f"at/{rank}"]) else ""
            before, since = seen.setdefault(rank, (at, now))
            if at != before:
                seen[rank] = (at, now)
            elif at != f"{self._turn} ended" and now - since > self._patience:
                text = f"rank {rank} did not answer: it hangs, or its disk does; it wrote nothing for"
                self._store.set("failed", f"{text} {self._patience:.0f} s")
                raise ExecutionError(f"{text} {self._patience:.0f} s")

    def _watched(self) -> Iterator[int]:
        """The ranks whose progress this one looks at."""
        rank, size = self._world.rank, self._world.size
        near = (0, *((rank + ahead) % size for ahead in range(1, WATCHED + 1)))
        return (other for other in dict.fromkeys(near) if other != rank)


def _store() -> Store:
    """The store of the default process group."""
    found: Store = dist.distributed_c10d._get_default_store()
    return found
