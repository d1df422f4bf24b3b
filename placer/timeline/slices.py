"""Slices of a step by rank and lane, what each waited for, and the chain of them that makes the step its length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from placer.ledger import Ledger
from placer.timeline.chrome import chrome_trace

Lane = Literal["compute", "send", "receive", "collective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A share of a slice: `kind` names an entry of `ledger.Seconds`."""

    kind: Literal["forward", "backward", "recompute", "communication", "reduction", "optimizer"]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one lane of a rank does from `start` to `end`, in seconds from the start of the step.

    `parts` add up to its length. `cause` is the index of the slice whose end let it start (-1: the start of the step);
    `message` numbers the two ends of a message (-1 for what is none).
    """

    rank: int
    lane: Lane
    name: str
    start: float
    end: float
    parts: tuple[Part, ...] = ()
    cause: int = -1
    message: int = -1

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A simulated step. `stands_for` gives for each simulated rank how many ranks of the plan do the same."""

    slices: tuple[Slice, ...]
    ledger: Ledger
    stands_for: tuple[tuple[int, int], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were simulated."""
        return tuple(rank for rank, _ in self.stands_for)

    @cached_property
    def step_seconds(self) -> float:
        """The end of the last slice."""
        return max((entry.end for entry in self.slices), default=0.0)

    @cached_property
    def critical_path(self) -> tuple[Slice, ...]:
        """The chain of slices that ends last, each the cause of the next."""
        return tuple(reversed(list(self._back_from_the_end())))

    def lane(self, rank: int, lane: Lane) -> tuple[Slice, ...]:
        """The slices of one lane of one rank, in order."""
        return tuple(entry for entry in self.slices if entry.rank == rank and entry.lane == lane)

    def busy_seconds(self, rank: int, lane: Lane) -> float:
        """Seconds a lane of a rank is in use."""
        return sum(entry.seconds for entry in self.lane(rank, lane))

    def to_chrome_json(self) -> str:
        """The trace as JSON in the trace event format, a process per rank and a thread per lane."""
        return chrome_trace(self.slices, dict(self.stands_for))

    def _back_from_the_end(self) -> Iterator[Slice]:
        if not self.slices:
            return
        at = max(range(len(self.slices)), key=lambda index: (self.slices[index].end, -index))
        while at >= 0:
            yield self.slices[at]
            at = self.slices[at].cause
