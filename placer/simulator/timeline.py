"""Slices of a step by rank and lane, what each waited for, and the chain of them that makes the step its length.

chrome_trace(slices): the trace event format (JSON object form), as chrome://tracing and ui.perfetto.dev read it.

A rank is a process (pid), a lane a thread (tid), a slice a complete event ("X") with a nested one for each of its parts
where it has several; a message is a flow ("s", "f") from the sender's slice to the receiver's. Times are microseconds,
rounded to whole nanoseconds at both ends, so that what touches still touches and what nests still nests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from placer.plans.ledger import Ledger, Seconds

Lane = Literal["compute", "send", "receive", "collective"]
Cause = Literal["forward", "backward", "recompute", "reduction", "optimizer", "communication"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePart:
    """A share of a slice: `kind` names an entry of `ledger.Seconds`."""

    kind: Cause
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
    parts: tuple[SlicePart, ...] = ()
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


def spent(slices: Sequence[Slice]) -> Seconds:
    """The step of the rank that computes longest, by cause; the entries add up to the end of the last slice.

    Computations count by their parts. In the gaps between them, what a collective of the rank fills is `reduction`,
    what else of them the flight of the message that ended the gap fills is `communication`, the rest is `bubble`.
    """
    end = max(entry.end for entry in slices)
    rank = _slowest(slices)
    computing = [entry for entry in slices if entry.rank == rank and entry.lane == "compute"]
    found = dict.fromkeys(get_args(Cause), 0.0)
    for entry in computing:
        for part in entry.parts:
            found[part.kind] += part.seconds
    reducing = [(entry.start, entry.end) for entry in slices if entry.rank == rank and entry.lane == "collective"]
    for gap, before in _gaps(computing, end):
        found["reduction"] += _covered(gap, reducing)
        for start, landed in _flight(slices, before):
            flown = max(gap[0], start), min(gap[1], landed)
            found["communication"] += max(0.0, flown[1] - flown[0]) - _covered(flown, reducing)
    total = sum(found.values())
    return Seconds(**found, bubble=max(0.0, end - total))


def _slowest(slices: Sequence[Slice]) -> int:
    busy: dict[int, float] = {}
    for entry in slices:
        if entry.lane == "compute":
            busy[entry.rank] = busy.get(entry.rank, 0.0) + entry.seconds
    return max(busy, key=lambda rank: (busy[rank], -rank))


def _gaps(computing: Sequence[Slice], end: float) -> Iterator[tuple[Interval, Slice | None]]:
    """The times a rank computes nothing, with the computation that follows."""
    reached = 0.0
    for entry in computing:
        if entry.start > reached:
            yield (reached, entry.start), entry
        reached = entry.end
    if end > reached:
        yield (reached, end), None


def _flight(slices: Sequence[Slice], waiting: Slice | None) -> list[Interval]:
    """From departure to arrival of the message a computation waited for."""
    if waiting is None or waiting.cause < 0 or slices[waiting.cause].lane != "receive":
        return []
    arrival = slices[waiting.cause]
    return [(slices[arrival.cause].start, arrival.end)]


def _covered(gap: Interval, intervals: Sequence[Interval]) -> float:
    return sum(max(0.0, min(gap[1], end) - max(gap[0], start)) for start, end in intervals)


# The order in which lanes are shown.
LANES = ("compute", "send", "receive", "collective")

Event = dict[str, object]


def chrome_trace(slices: Sequence[Slice], stands_for: Mapping[int, int]) -> str:
    """The JSON text; `stands_for` gives for each rank how many ranks of the plan do the same."""
    events = [*_names(stands_for)]
    for entry in slices:
        events += _events(entry)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _names(stands_for: Mapping[int, int]) -> Iterator[Event]:
    for rank, count in stands_for.items():
        name = f"rank {rank}" if count == 1 else f"rank {rank} (as {count} ranks)"
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        for tid, lane in enumerate(LANES):
            yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": lane}}
            yield {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": tid, "args": {"sort_index": tid}}


def _events(entry: Slice) -> Iterator[Event]:
    yield _complete(entry, entry.name, entry.start, entry.end)
    if len(entry.parts) > 1:
        start = entry.start
        for part in entry.parts:
            end = min(entry.end, start + part.seconds)
            yield _complete(entry, part.kind, start, end)
            start = end
    if entry.message >= 0:
        sending = entry.lane == "send"
        flow: Event = {"name": "message", "cat": "message", "ph": "s" if sending else "f", "id": entry.message}
        yield flow | _where(entry) | {"ts": _nanoseconds(entry.start) / 1000} | ({} if sending else {"bp": "e"})


def _complete(entry: Slice, name: str, start: float, end: float) -> Event:
    since, until = _nanoseconds(start), _nanoseconds(end)
    timing: Event = {"ts": since / 1000, "dur": (until - since) / 1000}
    return {"name": name, "cat": entry.lane, "ph": "X"} | _where(entry) | timing


def _where(entry: Slice) -> Event:
    return {"pid": entry.rank, "tid": LANES.index(entry.lane)}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
