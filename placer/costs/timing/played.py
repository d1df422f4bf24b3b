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
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
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
    play = _Play(wires, [0.0] * len(lines))
    at, met = [0] * len(lines), [-1] * len(lines)
    while play.events:
        _, position = heappop(play.events)
        if at[position] == len(lines[position]):
            continue
        turn = lines[position][at[position]]
        if met[position] < at[position]:
            met[position] = at[position]
            for number in turn.met:
                play.meet(number, play.clock[position])
        if play.computed(position, turn):
            at[position] += 1
    assert all(at[position] == len(line) for position, line in enumerate(lines)), "positions wait for ever"
    return play.clock


@dataclass(slots=True)
class _Play:
    """Clocks of positions, when messages were met by one end and have arrived, until when ways are in use."""

    wires: Sequence[Wire]
    clock: list[float]
    events: list[tuple[float, int]] = field(init=False)
    met: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    free: dict[Hashable, float] = field(default_factory=dict)
    waiting: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events = [(0.0, position) for position in range(len(self.clock))]
        heapify(self.events)

    def meet(self, number: int, now: float) -> None:
        """One end of a message has come to it; the second one lets it move."""
        other = self.met.pop(number, None)
        if other is None:
            self.met[number] = now
            return
        end = self.arrived[number] = self._moved(self.wires[number], max(other, now))
        for position in self.waiting.pop(number, ()):
            heappush(self.events, (end, position))

    def computed(self, position: int, turn: Turn) -> bool:
        """Whether a position has what it reads for a turn, which is then done; if not, it waits for a message."""
        begin = self.clock[position]
        for number in turn.read:
            arrived = self.arrived.get(number)
            if arrived is None:
                self.waiting.setdefault(number, []).append(position)
                return False
            begin = max(begin, arrived)
        self.clock[position] = begin + turn.seconds
        heappush(self.events, (self.clock[position], position))
        return True

    def _moved(self, wire: Wire, ready: float) -> float:
        """When a message that both ends have come to has arrived."""
        latency, occupied, leaving, arriving = wire
        if not leaving and not arriving:
            return ready + latency + occupied
        free = self.free
        entering = max([free.get(way, 0.0) for way in arriving], default=0.0)
        begin = max([ready, entering - latency, *[free.get(way, 0.0) for way in leaving]])
        arrived = max(begin + latency, entering) + occupied
        free.update(dict.fromkeys(leaving, begin + occupied))
        free.update(dict.fromkeys(arriving, arrived))
        return arrived
