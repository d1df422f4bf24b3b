"""What is under way over MPI: collectives, one after another on a thread of their group; messages, as MPI's requests.

A collective blocks its thread and nobody else, so that the backward goes on beside it; all ranks of a group come to its
collectives in the same order. Messages need no thread and no order. No wait is longer than the group's limit: MPI
itself has none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Protocol

import torch
from torch import distributed as dist

# After so many looks in a row a rank sleeps between them: MPI answers within microseconds or not at all soon.
LOOKS, SLEEP_SECONDS = 200, 5e-5


class Request(Protocol):
    """What MPI gives for a message."""

    def Test(self) -> bool:  # noqa: N802 (MPI's name)
        """Whether it has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How long a wait may be; `give_up` is done when one was longer: MPI cannot end in order then."""

    seconds: float
    give_up: Callable[[], None]

    def passed(self, where: str) -> RuntimeError:
        """To be raised."""
        self.give_up()
        return RuntimeError(f"MPI: Timed out after {self.seconds:.0f} s {where}")


class Collective(dist.Work):
    """One collective; `get_future` has `result` when it has ended."""

    def __init__(self, done: Future[None], result: object, limit: Limit) -> None:
        super().__init__()
        self._done, self._limit = done, limit
        self._future: torch.futures.Future[object] = torch.futures.Future()
        done.add_done_callback(lambda ended: self._tell(ended, result))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it has ended. Raises RuntimeError with what it ended with, or where it took too long."""
        try:
            self._done.result(timeout=self._limit.seconds)
        except Late:
            raise self._limit.passed("in a collective") from None
        return True

    def get_future(self) -> torch.futures.Future[object]:
        """What DDP waits for."""
        return self._future

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._done.done()

    def _tell(self, ended: Future[None], result: object) -> None:
        error = ended.exception()
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)


class Message(dist.Work):
    """One message that was sent or is awaited; `finish` is done once when it is there, `kept` lives as long."""

    def __init__(self, request: Request, kept: object, limit: Limit, finish: Callable[[], None]) -> None:
        super().__init__()
        self._request, self._kept, self._limit, self._finish = request, kept, limit, finish
        self._ended = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when it has ended. Raises RuntimeError where that takes too long."""
        until, looks = time.monotonic() + self._limit.seconds, 0
        while not self.is_completed():
            looks += 1
            if looks > LOOKS:
                time.sleep(SLEEP_SECONDS)
            if time.monotonic() > until:
                raise self._limit.passed("waiting for a message")
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        if not self._ended and self._request.Test():
            self._ended = True
            self._finish()
        return self._ended


class Line:
    """The collectives of a group, one after another, beside what else the process does."""

    def __init__(self, limit: Limit) -> None:
        self._limit = limit
        self._waiting: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        self._last: Future[None] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, do: Callable[[], None], result: object) -> Collective:
        """Do it when those before it have ended."""
        if self._thread is None:  # of no process that only sends messages
            self._thread = threading.Thread(target=self._serve, name="mpi", daemon=True)
            self._thread.start()
        self._last = Future()
        self._waiting.put((do, self._last))
        return Collective(self._last, result, self._limit)

    def end(self) -> None:
        """Begin nothing more."""
        self._waiting.put(None)

    def _serve(self) -> None:
        while (entry := self._waiting.get()) is not None:
            do, done = entry
            try:
                do()
            except Exception as error:  # whoever waits for it is told
                done.set_exception(error)
            else:
                done.set_result(None)
