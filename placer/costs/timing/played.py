"""Positions that do what their lines say, played; messages wait for the ways that they take.

In: of each position its turns, and what each message takes and occupies. Out: when each position is done.

A message may move when both of its ends have come to it in their lines. It occupies ways at its sender's end and at its
receiver's, ports and what leads out of and into nodes, each for as long as its bytes take; its first byte takes the
latency, in which the ways out serve the next message:

    begin = max(both ends there, ways out free, ways in free - latency)    ways out free = begin + occupied
    arrived = ways in free = max(begin + latency, ways in free) + occupied

Who comes first in time has the way first, of those at one moment the position before. So the simulator plays ranks.
"""

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple


class Wire(NamedTuple):
    """A message: seconds until its first byte arrives, those that it occupies ways for, and these at both its ends."""

    latency: float
    occupied: float
    leaving: Sequence[Hashable] = ()
    arriving: Sequence[Hashable] = ()


class Turn(NamedTuple):
    """What a position does next: ends of messages that it comes to first, those that it reads, and for how long it
    computes once it has them. Messages by their numbers."""

    met: Sequence[int]
    read: Sequence[int]
    seconds: float


def played(lines: Sequence[Sequence[Turn]], wires: Sequence[Wire]) -> list[float]:
    """When each position is done; of messages whose ends do not meet in order it would wait for ever."""
    clock, at, met = [0.0] * len(lines), [0] * len(lines), [-1] * len(lines)
    moving = _Moving(wires)
    events = [(0.0, position) for position in range(len(lines)) if lines[position]]
    waiting: dict[int, list[int]] = {}
    while events:
        _, position = heappop(events)
        number, line, begin = at[position], lines[position], clock[position]
        turn = line[number]
        if met[position] < number:
            met[position] = number
            for message, end in moving.met(turn.met, begin):
                for other in waiting.pop(message, ()):
                    heappush(events, (end, other))
        missing, begin = moving.read(turn.read, begin)
        if missing is not None:
            waiting.setdefault(missing, []).append(position)
            continue
        clock[position], at[position] = begin + turn.seconds, number + 1
        if number + 1 < len(line):
            heappush(events, (clock[position], position))
    assert all(at[position] == len(line) for position, line in enumerate(lines)), "positions wait for ever"
    return clock


class _Moving:
    """When messages were met by one end and have arrived, until when ways are in use."""

    def __init__(self, wires: Sequence[Wire]) -> None:
        self._wires = wires
        self._first: list[float | None] = [None] * len(wires)
        self._arrived: list[float | None] = [None] * len(wires)
        self._free: dict[Hashable, float] = {}

    def met(self, messages: Sequence[int], now: float) -> list[tuple[int, float]]:
        """One end has come to messages; the second one lets them move. Those that do, and when they have arrived."""
        first, found = self._first, []
        for message in messages:
            other = first[message]
            if other is None:
                first[message] = now
                continue
            arrived = self._arrived[message] = self._moved(self._wires[message], other if other > now else now)
            found.append((message, arrived))
        return found

    def read(self, messages: Sequence[int], begin: float) -> tuple[int | None, float]:
        """The first of messages that has not arrived, and when all before it have, not before `begin`."""
        for message in messages:
            arrived = self._arrived[message]
            if arrived is None:
                return message, begin
            if arrived > begin:
                begin = arrived
        return None, begin

    def _moved(self, wire: Wire, ready: float) -> float:
        """When a message that both ends have come to has arrived."""
        latency, occupied, leaving, arriving = wire
        if not leaving and not arriving:
            return ready + latency + occupied
        free, entering = self._free, 0.0
        for way in arriving:
            if way in free and free[way] > entering:
                entering = free[way]
        begin = max(ready, entering - latency)
        for way in leaving:
            if way in free and free[way] > begin:
                begin = free[way]
        arrived = max(begin + latency, entering) + occupied
        for way in leaving:
            free[way] = begin + occupied
        for way in arriving:
            free[way] = arrived
        return arrived
