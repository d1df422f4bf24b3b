"""Positions that do what their lines say, played; messages wait for the ways that they take.

In: of each position what it comes to and computes, the seconds of that, and what each message takes and occupies. Out:
when each position is done.

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
from typing import NamedTuple, TypeAlias


class Wire(NamedTuple):
    """A message: seconds until its first byte arrives, those that it occupies ways for, and these at both its ends."""

    latency: float
    occupied: float
    leaving: Sequence[Hashable] = ()
    arriving: Sequence[Hashable] = ()


# What a position computes once it has the messages that it reads; messages and computations by their numbers.
Turn: TypeAlias = tuple[Sequence[int], int]
# What a position does: it comes to ends of messages, by their numbers, and has turns.
Line: TypeAlias = Sequence[int | Turn]


def played(lines: Sequence[Line], seconds: Sequence[float], wires: Sequence[Wire]) -> list[float]:
    """When each position is done, where what it computes takes so many `seconds`; of messages whose ends do not meet
    in order it would wait for ever."""
    clock, at = [0.0] * len(lines), [0] * len(lines)
    came, arrived = [inf] * len(wires), [inf] * len(wires)
    free, waiting = dict[Hashable, float](), dict[int, int]()
    events = [(0.0, position) for position, line in enumerate(lines) if line]
    while events:
        _, position = heappop(events)
        line, number, now = lines[position], at[position], clock[position]
        while number < len(line):
            does = line[number]
            if isinstance(does, int):
                if came[does] == inf:
                    came[does] = now
                else:
                    arrived[does] = end = _moved(wires[does], max(came[does], now), free)
                    if does in waiting:
                        heappush(events, (end, waiting.pop(does)))
                number += 1
                continue
            begin = now
            for message in does[0]:
                if arrived[message] > begin:
                    begin = arrived[message]
            if begin == inf:
                waiting[next(message for message in does[0] if arrived[message] == inf)] = position
                break
            now = begin + seconds[does[1]]
            number += 1
            if events and events[0] < (now, position):
                heappush(events, (now, position))
                break
        clock[position], at[position] = now, number
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
