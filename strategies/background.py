"""Work that another process does beside this one: searches are pure Python, of which a process runs one line at a time.

`Forked` starts a process that has everything this one has, and gives what it yields, in order. What cannot be had from
it (it was killed, it failed, there is no second core) is made here, so that results and errors are the same with it.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")

# Searches on so many devices take seconds, and another process some hundredths to begin.
MANY_DEVICES = 64


class Forked(Generic[T]):
    """What `make` yields, made by another process if `apart` and there is a core for it.

    kept: objects that both have; what is yielded refers to those of this process.
    """

    def __init__(self, make: Callable[[], Iterator[T]], *, apart: bool = True, kept: tuple[object, ...] = ()) -> None:
        self._make = make
        self._kept = kept
        self._process: ForkProcess | None = None
        self._given, self._whole = 0, False
        if apart and _another_core():
            self._start()

    @property
    def apart(self) -> bool:
        """Whether another process makes it."""
        return self._process is not None

    def __iter__(self) -> Iterator[T]:
        """Everything, waited for. What the other process owes when it ends is made here."""
        while self._process is not None and (found := self._received()) is not _ENDED:
            yield found  # type: ignore[misc]
        for number, found in enumerate(self._make() if self._process is None or not self._whole else ()):
            if number >= self._given:
                yield found

    def ready(self) -> Iterator[T]:
        """What the other process has made so far."""
        while self._process is not None and self._receive.poll() and (found := self._received()) is not _ENDED:
            yield found  # type: ignore[misc]

    def close(self) -> None:
        """End the other process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._receive.close()
            self._process = None

    def _start(self) -> None:
        context = get_context("fork")
        self._receive, send = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(self._make, send, self._kept), daemon=True)
        with warnings.catch_warnings():  # Python warns of forking beside threads: none of them is used there
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        send.close()

    def _received(self) -> object:
        try:
            sent = self._receive.recv_bytes()
        except (EOFError, OSError):
            return _ENDED
        if not sent:
            self._whole = True
            return _ENDED
        self._given += 1
        return _Loads(io.BytesIO(sent), self._kept).load()


def from_both_ends(items: Sequence[S], make: Callable[[S], T], *, apart: bool, over: Callable[[], bool]) -> list[T]:
    """`make` of each item in order, here from the first on and, if `apart`, by another process from the last back.

    Without some in the middle, but with the first, where it is `over` before all are made.
    """
    others = Forked(lambda: map(make, reversed(items[1:])), apart=apart and len(items) > 1)
    front, back = list[T](), list[T]()
    taken = _taken.set(_taken.get() + others.apart)
    try:
        for item in items:
            back.extend(others.ready())
            left = len(items) - len(front) - len(back)
            if left <= 0 or (front and over()):  # below 0 where both have made the same one
                break
            if left == 1 and front and others.apart:  # the other process is at it
                back.append(next(iter(others)))
                break
            front.append(make(item))
    finally:
        _taken.reset(taken)
        others.close()
    return [*front, *reversed(back[: len(items) - len(front)])]


def in_shares(items: Sequence[S], make: Callable[[S], T]) -> list[T]:
    """`make` of each item in order, by this process and as many others as there are cores and items for."""
    count = max(1, min(len(items), 1 + _other_cores()))
    shares = [items[number::count] for number in range(count)]
    others = [Forked(partial(map, make, share)) for share in shares[1:]]
    taken = _taken.set(_taken.get() + sum(other.apart for other in others))
    try:
        made = [list(map(make, shares[0])), *(list(other) for other in others)]
    finally:
        _taken.reset(taken)
        for other in others:
            other.close()
    return [made[number % count][number // count] for number in range(len(items))]


_ENDED = object()
# Cores on which other processes make items of the list that this one makes an item of: none is left for parts of it.
_taken: ContextVar[int] = ContextVar("taken", default=0)


def _another_core() -> bool:
    """Whether there are a core and the right to start a process."""
    return _other_cores() > 0


def _other_cores() -> int:
    """The cores that nobody here works on; none where this process may not start another."""
    forks = hasattr(os, "fork") and hasattr(os, "sched_getaffinity") and not current_process().daemon
    return max(0, len(os.sched_getaffinity(0)) - 1 - _taken.get()) if forks else 0


def _serve(make: Callable[[], Iterator[T]], send: Connection, kept: tuple[object, ...]) -> None:
    """Send what is made, and nothing at the end of all; an error ends it early, and shows where it is made again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the one who waits
    gc.freeze()  # what the other one left is not looked at: its pages stay shared
    with suppress(Exception), ThreadPoolExecutor(max_workers=1) as sender:  # who waits for nobody goes on making
        for found in make():
            file = io.BytesIO()
            _Dumps(file, kept).dump(found)
            sender.submit(send.send_bytes, file.getvalue())
        sender.submit(send.send_bytes, b"")
    os._exit(0)  # what the other one has open is its own to end


class _Dumps(pickle.Pickler):
    def __init__(self, file: io.BytesIO, kept: tuple[object, ...]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(each): number for number, each in enumerate(kept)}

    def persistent_id(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))


class _Loads(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: tuple[object, ...]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, pid: int) -> object:
        return self._kept[pid]
