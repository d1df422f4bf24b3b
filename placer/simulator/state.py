"""Board: what is known of a step while it is played: clocks, ways in use, slices drawn, ranks that wait."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence

from placer.program.instructions import Program
from placer.simulator.timeline import Lane, Slice, SlicePart

# A time and the slice that ended then: the latest of several moments says what was waited for.
Moment = tuple[float, int]
BEGINNING: Moment = (0.0, -1)


class Board:
    """`clock` is when each rank was done with what it did last, `at` the number of its next instruction."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = {program.rank: program for program in programs}
        self.clock = dict.fromkeys(self.programs, BEGINNING)
        self.at = dict.fromkeys(self.programs, 0)
        self.computing = dict.fromkeys(self.programs, (0.0, 0.0))
        self.slices: list[Slice] = []
        self._free: dict[Hashable, Moment] = {}
        self._parked: dict[Hashable, list[int]] = {}
        self._events = [(0.0, rank) for rank in sorted(self.programs)]

    def next_rank(self) -> int | None:
        """The rank that can go on next in time; None where none can."""
        return heapq.heappop(self._events)[1] if self._events else None

    def resume(self, rank: int, moment: Moment) -> None:
        """Let a rank go on at a moment."""
        heapq.heappush(self._events, (moment[0], rank))

    def park(self, rank: int, key: Hashable) -> None:
        """Let a rank wait until `key` is known."""
        self._parked.setdefault(key, []).append(rank)

    def wake(self, key: Hashable, moment: Moment) -> None:
        """Let all that wait for `key` go on at a moment."""
        for rank in self._parked.pop(key, ()):
            self.resume(rank, moment)

    def free(self, way: Hashable) -> Moment:
        """When a way is free."""
        return self._free.get(way, BEGINNING)

    def occupy(self, ways: Iterable[Hashable], until: Moment) -> None:
        """Use ways until a moment."""
        self._free |= dict.fromkeys(ways, until)

    def draw(
        self, rank: int, lane: Lane, name: str, begin: Moment, seconds: float, parts: tuple[SlicePart, ...] = (), *,
        message: int = -1,
    ) -> Moment:  # fmt: skip
        """Add a slice; the moment it ends."""
        end = begin[0] + seconds
        drawn = Slice(
            rank=rank, lane=lane, name=name, start=begin[0], end=end, parts=parts, cause=begin[1], message=message
        )
        self.slices.append(drawn)
        return end, len(self.slices) - 1
