"""The problem of list schedulers: a weighted directed graph of tasks and the devices they may run on.

    seconds of a task   by device, infinite where it may not run
    seconds of an edge  messages * latency + size * per_byte of the link between the two devices; 0 within a device
    memory              the sizes of a device's tasks sum to at most its memory
    groups              tasks of one group share a device
    contiguous          devices must not wait for each other in a cycle; tasks on `lone` devices stand each for itself

Units are those of the source: a file's own, or seconds and bytes.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

from placer.costs.communication.network import LinkCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What `target` reads of `source`: so many messages of `size` altogether."""

    source: int
    target: int
    messages: int = 1
    size: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TaskGraph:
    """Tasks by number: `seconds[task][device]`, `size[task]`, `group[task]`; `links[source][target]` of devices."""

    names: tuple[str, ...]
    seconds: tuple[tuple[float, ...], ...]
    size: tuple[float, ...]
    group: tuple[int, ...]
    edges: tuple[Edge, ...]
    memory: tuple[float, ...]
    links: tuple[tuple[LinkCost, ...], ...]
    contiguous: bool = False
    lone: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return len(self.names)

    @property
    def devices(self) -> range:
        """The devices by number."""
        return range(len(self.memory))

    @cached_property
    def reads(self) -> tuple[tuple[Edge, ...], ...]:
        """The edges into each task."""
        found: list[list[Edge]] = [[] for _ in self.names]
        for edge in self.edges:
            found[edge.target].append(edge)
        return tuple(map(tuple, found))

    @cached_property
    def feeds(self) -> tuple[tuple[Edge, ...], ...]:
        """The edges out of each task."""
        found: list[list[Edge]] = [[] for _ in self.names]
        for edge in self.edges:
            found[edge.source].append(edge)
        return tuple(map(tuple, found))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The tasks, each behind what it reads, the smallest number first."""
        waiting = [len({edge.source for edge in before}) for before in self.reads]
        ready = [task for task, count in enumerate(waiting) if not count]
        found = []
        while ready:
            task = heapq.heappop(ready)
            found.append(task)
            for reader in {edge.target for edge in self.feeds[task]}:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, reader)
        return tuple(found)

    @cached_property
    def mean_seconds(self) -> tuple[float, ...]:
        """Of each task, over the devices that may run it."""
        return tuple(_mean([each for each in own if math.isfinite(each)]) for own in self.seconds)

    @cached_property
    def _mean_link(self) -> LinkCost:
        """Over all pairs of different devices."""
        pairs = [self.links[a][b] for a in self.devices for b in self.devices if a != b]
        return LinkCost(_mean([link.latency for link in pairs]), _mean([link.per_byte for link in pairs]))

    def mean_transfer(self, edge: Edge) -> float:
        """Seconds of an edge between two devices, any two."""
        return edge.messages * self._mean_link.latency + edge.size * self._mean_link.per_byte

    def transfer(self, edge: Edge, source: int, target: int) -> float:
        """Seconds of an edge from one device to another."""
        if source == target:
            return 0.0
        link = self.links[source][target]
        return edge.messages * link.latency + edge.size * link.per_byte

    def ranks(self, *, communication: bool) -> tuple[float, ...]:
        """Of each task the seconds of the longest way from its start to the end, with or without those of edges."""
        found = list(self.mean_seconds)
        for task in reversed(self.order):
            for edge in self.feeds[task]:
                sent = self.mean_transfer(edge) if communication else 0.0
                found[task] = max(found[task], self.mean_seconds[task] + sent + found[edge.target])
        return tuple(found)

    @cached_property
    def groups(self) -> dict[int, tuple[int, ...]]:
        """The tasks of each group."""
        found: dict[int, list[int]] = {}
        for task, group in enumerate(self.group):
            found.setdefault(group, []).append(task)
        return {group: tuple(tasks) for group, tasks in found.items()}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
