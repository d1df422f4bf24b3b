"""The best plan so far: which step time a search had found after how many seconds, and which bound it knew.

A search tells what it finds (`Problem.found`, `progress_line.tell`); who compares searches, or keeps a log of one,
listens. Nothing is decided by it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from placer.errors import UsageError
from placer.io.bounds import Amount, AmountAboveZero
from placer.io.files import parsed_json, read_text, write_text
from placer.io.refusals import refused

# Seconds of a search, and seconds of a step.
Point = tuple[Amount, AmountAboveZero]


@dataclass(eq=False)
class Progress:
    """Listens from when it is made; `curve`: seconds since then, and the step seconds that were the best from then.

    bounds: likewise, the bound of what was not looked at yet.
    """

    begun: float = field(default_factory=time.perf_counter)
    curve: list[Point] = field(default_factory=list)
    bounds: list[Point] = field(default_factory=list)

    def begin(self) -> None:
        """Count seconds from now."""
        self.begun = time.perf_counter()

    def found(self, step_seconds: float) -> None:
        """A legal plan of so many seconds a step is known."""
        if not self.curve or step_seconds < self.curve[-1][1]:
            self.curve.append((time.perf_counter() - self.begun, step_seconds))

    def bounded(self, step_seconds: float) -> None:
        """No plan that was not looked at yet takes less."""
        if step_seconds > 0 and (not self.bounds or step_seconds != self.bounds[-1][1]):
            self.bounds.append((time.perf_counter() - self.begun, step_seconds))

    def log(self) -> SearchLog:
        """What was heard until now."""
        return SearchLog(
            seconds=time.perf_counter() - self.begun, best=tuple(self.curve), bounds=tuple(self.bounds)
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLog:
    """A search of so many seconds: after how many of them which best step time, and which bound of the rest."""

    seconds: Amount
    best: tuple[Point, ...] = ()
    bounds: tuple[Point, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write it as JSON, atomically."""
        write_text(path, LOG.dump_json(self, indent=1).decode() + "\n")

    @staticmethod
    def load(path: str | Path) -> SearchLog:
        """Read what `save` wrote. Raises UsageError for anything else."""
        what = f"{path} is not the log of a search"
        document = parsed_json(read_text(path, "the log of the search"), what)
        try:
            return LOG.validate_python(document)
        except ValidationError as error:
            raise UsageError(f"{what}: {refused(error)}; make one with `placer plan --search-log`") from None


LOG: TypeAdapter[SearchLog] = TypeAdapter(SearchLog)
