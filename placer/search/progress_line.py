"""A line on a terminal for searches that last: what is searched, the best so far, the bound, the time left.

Strategies `tell` what they know; without anybody who shows it that costs a look at a variable. Shown after `PATIENCE`
seconds, a few times a second, on standard error and only where that is a terminal; taken back at the end. Processes
forked by a search say nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TextIO

from placer.io.terminal import LINE_AGAIN
from placer.search.progress import Progress

PATIENCE = 2.0
BETWEEN = 0.2


@dataclass(slots=True, kw_only=True)
class ProgressLine:
    """What was told last, and where it is shown.

    best, bound: seconds of a step, the bound that of what the phase has not looked at yet: nothing is proven before
    the search ends. until: by the clock.
    """

    stream: TextIO
    clock: Callable[[], float] = time.perf_counter
    until: float | None = None
    phase: str = ""
    part: str = ""
    best: float | None = None
    bound: float | None = None
    begun: float = field(init=False)
    shown: float | None = None
    process: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.begun = self.clock()

    def show(self) -> None:
        """Write the line anew where its time has come."""
        now = self.clock()
        if now - self.begun < PATIENCE or (self.shown is not None and now - self.shown < BETWEEN):
            return
        self.shown = now
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(LINE_AGAIN + self.text(now)[:width])
        self.stream.flush()

    def text(self, now: float) -> str:
        """`stages, best 1.23 s a step, bound of the rest 1.2 s, 12 s of search, 18 s left`."""
        step = None if self.best is None else f"best {self.best:.4g} s a step"
        bound = None if self.bound is None else f"bound of the rest {self.bound:.4g} s"
        left = None if self.until is None else f"{max(0.0, self.until - now):.0f} s left"
        parts = (self.part, self.phase, step, bound, f"{now - self.begun:.0f} s of search", left)
        return ", ".join(part for part in parts if part)

    def close(self) -> None:
        """Take the line back."""
        if self.shown is not None:
            self.stream.write(LINE_AGAIN)
            self.stream.flush()


_LINE: ContextVar[ProgressLine | None] = ContextVar("placer's line of progress", default=None)
_LISTENER: ContextVar[Progress | None] = ContextVar("who keeps a log of bounds", default=None)


def tell(
    *, part: str | None = None, phase: str | None = None, best: float | None = None, bound: float | None = None
) -> None:
    """Say what is known now. A new part (one problem of several) or phase (a strategy) forgets best and bound."""
    finite = float("inf")
    listener = _LISTENER.get()
    if listener is not None and bound is not None and bound < finite:
        listener.bounded(bound)
    line = _LINE.get()
    if line is None or line.process != os.getpid():
        return
    if part is not None:
        line.part, line.phase, line.best, line.bound = part, "", None, None
    if phase is not None:
        line.phase, line.best, line.bound = phase, None, None
    line.best = best if best is not None and best < finite else line.best
    line.bound = bound if bound is not None and bound < finite else line.bound
    line.show()


@contextmanager
def heard_by(listener: Progress | None) -> Iterator[None]:
    """Tell `listener` the bounds that are told within."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def progress_line(until: float | None = None, stream: TextIO | None = None) -> Iterator[None]:
    """Show what is told within on standard error, where that is a terminal; a line within another one is that one."""
    to = sys.stderr if stream is None else stream
    if _LINE.get() is not None or not to.isatty():
        yield
        return
    line = ProgressLine(stream=to, until=until)
    token = _LINE.set(line)
    try:
        yield
    finally:
        _LINE.reset(token)
        line.close()
