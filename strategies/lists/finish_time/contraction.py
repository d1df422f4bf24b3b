"""A part of a task graph, its short tasks folded into the ways between the others: smaller programs, bounds of all.

    way     begin[target] >= end[source] + lag; + sent more where the two run on different devices
    folded  a task between a maker and a reader leaves a way: both lags and its own seconds, the less `sent` of both

A folded task needs no device and waits for none, so that every schedule of the graph is one of the part. One that joins
several makers stays where a message of theirs is long: that they share a device, or send, would be forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from placer.strategies.lists.task_graph import Edge, TaskGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Least seconds from the end of `source` to the begin of `target`, and how many more between two devices."""

    source: int
    target: int
    lag: float
    sent: float


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tasks that stay, the ways between them, and those of them whose arrival follows from the ways alone."""

    tasks: tuple[int, ...]
    ways: tuple[Way, ...]
    exact: frozenset[int]


def short_tasks(tasks: TaskGraph, least: float) -> frozenset[int]:
    """Tasks of at most so many seconds, on any device, that share their device with none and take no memory that may be
    missing elsewhere."""
    free = math.fsum(tasks.size) <= min(tasks.memory)
    alone = {own[0] for own in tasks.groups.values() if len(own) == 1 and (free or not tasks.size[own[0]])}
    return frozenset(task for task in alone if max(tasks.seconds[task]) <= least)


def far_from_long(tasks: TaskGraph, short: frozenset[int], least: float) -> frozenset[int]:
    """Of the short tasks those that stand in no queue of interest: none feeds a long one, none reads a long message."""
    near = {edge.source for edge in tasks.edges if edge.target not in short}
    near |= {edge.target for edge in tasks.edges if edge.source not in short and _sent(tasks, edge)[0] > least}
    return short - near


def contracted(tasks: TaskGraph, among: frozenset[int], short: frozenset[int], least: float) -> Part:
    """The graph of `among`, the `short` ones of it folded; messages of at most `least` seconds are short too."""
    return _Folding(tasks, among).fold(sorted(short & among), least)


def _sent(tasks: TaskGraph, edge: Edge) -> tuple[float, float]:
    """The least and the most seconds of an edge between two different devices."""
    ways = [tasks.transfer(edge, a, b) for a in tasks.devices for b in tasks.devices if a != b]
    return min(ways, default=0.0), max(ways, default=0.0)


class _Folding:
    """Ways by target and source, while tasks are folded."""

    def __init__(self, tasks: TaskGraph, among: frozenset[int]) -> None:
        self._tasks = tasks
        self._into: dict[int, dict[int, Way]] = {task: {} for task in sorted(among)}
        self._readers: dict[int, set[int]] = {task: set() for task in among}
        self._exact = set(among)
        for edge in tasks.edges:
            if edge.target not in among:
                continue
            least, most = _sent(tasks, edge)
            if edge.source not in among or least != most:
                self._exact.discard(edge.target)
            if edge.source in among:
                self._join(Way(source=edge.source, target=edge.target, lag=0.0, sent=least))

    def fold(self, short: Iterable[int], least: float) -> Part:
        """Again and again, since a fold may make another one small."""
        before: list[int] = []
        waiting = list(short)
        while waiting != before:
            before, waiting = waiting, [task for task in waiting if not self._folds(task, least)]
        return Part(
            tasks=tuple(self._into),
            ways=tuple(way for own in self._into.values() for way in own.values()),
            exact=frozenset(self._exact & self._into.keys()),
        )

    def _folds(self, task: int, least: float) -> bool:
        """Fold it where that leaves about as many ways and forgets no join of long messages."""
        makers, readers = self._into[task], self._readers[task]
        joins = len(makers) > 1 and any(way.sent > least for way in makers.values())
        if joins or len(makers) * len(readers) > len(makers) + len(readers) + 2:
            return False
        own = min(self._tasks.seconds[task])
        for reader in readers:
            to = self._into[reader].pop(task)
            self._exact.discard(reader)
            for way in makers.values():
                lag, sent = way.lag + own + to.lag, min(way.sent, to.sent)
                self._join(Way(source=way.source, target=reader, lag=lag, sent=sent))
        for maker in makers:
            self._readers[maker].discard(task)
        del self._into[task], self._readers[task]
        return True

    def _join(self, way: Way) -> None:
        """Beside another way between the two both hold."""
        other = self._into[way.target].get(way.source)
        if other is not None:
            lag = max(way.lag, other.lag)
            way = Way(
                source=way.source,
                target=way.target,
                lag=lag,
                sent=max(math.fsum((way.lag, way.sent)), math.fsum((other.lag, other.sent))) - lag,
            )
        self._into[way.target][way.source] = way
        self._readers[way.source].add(way.target)
