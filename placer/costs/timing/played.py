"""Positions that do what their lines say, played; messages wait for the ways that they take.

In: of each position its turns, the seconds of what they compute, and what each message takes and occupies. Out: when
each position is done.

A message may move when both of its ends have come to it in their lines. It occupies ways at its sender's end and at its
receiver's, ports and what leads out of and into nodes, each for as long as its bytes take; its first byte takes the
latency, in which the ways out serve the next message:

    begin = max(both ends there, ways out free, ways in free - latency)    ways out free = begin + occupied
    arrived = ways in free = max(begin + latency, ways in free) + occupied

Who comes first in time has the way first, of those at one moment the position before. So the simulator plays ranks.
"""

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple


class Wire(NamedTuple):
    """A message: seconds until its first byte arrives, those that it occupies ways for, and these at both its ends."""

    latency: float
    occupied: float
    leaving: Sequence[Hashable] = ()
    arriving: Sequence[Hashable] = ()


class Turn(NamedTuple):
    """What a position does next: ends of messages that it comes to first, those that it reads, and what it computes
    once it has them; messages and computations by their numbers."""

    met: Sequence[int]
    read: Sequence[int]
    computes: int


def played(lines: Sequence[Sequence[Turn]], seconds: Sequence[float], wires: Sequence[Wire]) -> list[float]:
    """When each position is done, where what it computes takes so many `seconds`; of messages whose ends do not meet
    in order it would wait for ever."""
    clock, at, met = [0.0] * len(lines), [0] * len(lines), [-1] * len(lines)
    came, arrived = [inf] * len(wires), [inf] * len(wires)
    free, waiting = dict[Hashable, float](), dict[int, int]()
    events = [(0.0, position) for position, line in enumerate(lines) if line]
    while events:
        now = heappop(events)
        position = now[1]
        line, number, begin = lines[position], at[position], clock[position]
        while number < len(line) and (not events or now < events[0]):
            ends, read, computes = line[number]
            if met[position] < number:
                met[position] = number
                for message in ends:
                    if came[message] == inf:
                        came[message] = begin
                        continue
                    arrived[message] = end = _moved(wires[message], max(came[message], begin), free)
                    if message in waiting:
                        heappush(events, (end, waiting.pop(message)))
            for message in read:
                if arrived[message] > begin:
                    begin = arrived[message]
            if begin == inf:
                waiting[next(message for message in read if arrived[message] == inf)] = position
                break
            begin += seconds[computes]
            number += 1
            now = (begin, position)
            clock[position], at[position] = begin, number
        else:
            if number < len(line):
                heappush(events, now)
    assert all(at[position] == len(line) for position, line in enumerate(lines)), "positions wait for ever"
    return clock


def _moved(wire: Wire, ready: float, free: dict[Hashable, float]) -> float:
    """When a message that both ends have come to has arrived; `free`: until when ways are in use."""
    latency, occupied, leaving, arriving = wire
    begin, entering = ready, 0.0
    for way in arriving:
        if way in free and free[way] > entering:
            entering = free[way]
    if entering - latency > begin:
        begin = entering - latency
    for way in leaving:
        if way in free and free[way] > begin:
            begin = free[way]
    arrived = max(begin + latency, entering) + occupied
    for way in leaving:
        free[way] = begin + occupied
    for way in arriving:
        free[way] = arrived
    return arrived
