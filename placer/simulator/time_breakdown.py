"""Where the seconds of a simulated step went on its slowest rank: the ledger's entries, read off the slices.

Computations count by their parts. In the gaps between them, what a collective of the rank fills is `reduction`, what
the flight of the message that ended the gap fills is `communication`, the rest is `bubble`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.plans.ledger import Seconds
from placer.simulator.timeline import Slice

Interval = tuple[float, float]


def spent(slices: Sequence[Slice]) -> Seconds:
    """The step of the rank that computes longest, by cause; the entries add up to the end of the last slice."""
    end = max(entry.end for entry in slices)
    rank = _slowest(slices)
    computing = [entry for entry in slices if entry.rank == rank and entry.lane == "compute"]
    found = {
        "forward": 0.0,
        "backward": 0.0,
        "recompute": 0.0,
        "reduction": 0.0,
        "optimizer": 0.0,
        "communication": 0.0,
    }
    for entry in computing:
        for part in entry.parts:
            found[part.kind] += part.seconds
    reducing = [(entry.start, entry.end) for entry in slices if entry.rank == rank and entry.lane == "collective"]
    for gap, before in _gaps(computing, end):
        found["reduction"] += _covered(gap, reducing)
        found["communication"] += _covered(gap, _flight(slices, before))
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
