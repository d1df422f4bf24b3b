"""The least seconds of messages within pipelines: what crosses a cut, over the links of the devices on both sides."""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from placer.io.memo import once, remembered
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.schedule import Floats
from placer.strategies.inter_op.submeshes.bounds import StageBounds
from placer.strategies.inter_op.submeshes.submesh import PlacedSubmesh
from placer.strategies.inter_op.submeshes.two_shapes.family import PipelinePart

_ByNode = dict[int, list[int]]


class _Link(NamedTuple):
    """The best way between two sets of nodes: latency, seconds per byte of a device, and of all devices of a node."""

    latency: float
    lone: float
    whole: float


class _Border(NamedTuple):
    """The way between two positions: latency, seconds per byte of all devices together where all are near, and of what
    must leave its node on and back; the replicas of both."""

    latency: float
    alone: float
    ahead: float
    behind: float
    replicas: int
    others: int


class MessageBounds:
    """Messages of the pipelines of one problem."""

    def __init__(self, problem: Problem, bounds: StageBounds) -> None:
        self.problem = problem
        self.bounds = bounds
        self._network = next(iter(bounds.views.values())).costs.network
        self._known: dict[object, _Border] = {}
        self._between: dict[object, Floats] = {}

    def between(self, ahead: tuple[PipelinePart, ...], behind: tuple[PipelinePart, ...], rows: int) -> Floats:
        """Seconds on and back at each cut between two parts, shape (first parts, second parts, cuts)."""
        ranges = ahead[0].device_range, behind[0].device_range
        own, its = (tuple(part.submesh for part in parts) for parts in (ahead, behind))
        borders = once(self._between, (ranges, own, its), self._borders, ahead, behind)
        return _seconds(_ways(borders, rows), self._sizes(rows))

    @remembered
    def within(self, ways: frozenset[_Border], rows: int, *, head: bool) -> Floats:
        """Seconds on and back between two positions of a part, whose `inner` ways are these, where they are nearest.

        The least of the cuts before each inner cut, or of those behind it; of the outermost 0.
        """
        borders = np.array(sorted(ways)).T[..., None]
        each: Floats = _seconds(_ways(borders, rows), self._sizes(rows)).min(axis=0)
        return _before(each) if head else _before(each[::-1])[::-1]

    @remembered
    def inner(self, part: PipelinePart) -> frozenset[_Border]:
        """The kinds of ways between two neighbours of a part."""
        return frozenset(self._border(*both) for both in pairwise(part.placements))

    def _borders(self, ahead: tuple[PipelinePart, ...], behind: tuple[PipelinePart, ...]) -> Floats:
        """The ways between parts of two device ranges, shape (numbers of a way, first parts, second parts, 1)."""
        found = np.zeros((len(_Border._fields), len(ahead), len(behind), 1))
        for (a, first), (b, second) in product(enumerate(ahead), enumerate(behind)):
            own, its = first.submesh, second.submesh
            key = first.device_range, second.device_range, own.size, own.degree, its.size, its.degree
            found[:, a, b, 0] = once(self._known, key, self._border, first.placements[-1], second.placements[0])
        return found

    def _border(self, source: PlacedSubmesh, target: PlacedSubmesh) -> _Border:
        """The way between two positions; rows of replicas that share no node with the other one leave their node."""
        nodes, others = self._by_node(source.devices), self._by_node(target.devices)
        near = self._link(source.device_class, target.device_class, shared=not nodes.keys().isdisjoint(others))
        alone = near.lone / min(len(source.devices), len(target.devices))
        ahead = behind = 0.0
        if nodes.keys() != others.keys():
            far = self._link(source.device_class, target.device_class, shared=False)
            back = self._link(target.device_class, source.device_class, shared=False)
            ahead = _leaving(far, source.devices, (nodes, others), len(target.devices))
            behind = _leaving(back, target.devices, (others, nodes), len(source.devices))
        return _Border(near.latency, alone, ahead, behind, source.submesh.replicas, target.submesh.replicas)

    @remembered
    def _link(self, own: int, its: int, *, shared: bool) -> _Link:
        """The best way from a class of devices to another one, with `shared` also within a node."""
        classes = self.bounds.places.device_classes.devices
        sources, targets = self._by_node(classes[own]), self._by_node(classes[its])
        found = [self._best(a, b) for (m, a), (n, b) in product(sources.items(), targets.items()) if m != n]
        if shared:
            found += [self._within(a, targets[node]) for node, a in sources.items() if node in targets]
        return _Link(*(min(each) for each in zip(*found, strict=True)))

    def _best(self, sources: list[int], targets: list[int]) -> _Link:
        """From one node, all of whose devices may send, to another one, which one of these messages enters at least."""
        lone = self._network.link_costs([(sources[0], targets[0])])[sources[0], targets[0]]
        start, end = (self.problem.cluster.node_of[devices[0]] for devices in (sources, targets))
        whole = self._network.way(start, end, leaving=len(sources), entering=1)
        return _Link(lone.latency, lone.per_byte, max(lone.per_byte, whole.per_byte) / len(sources))

    def _within(self, sources: list[int], targets: list[int]) -> _Link:
        """Between devices of one node."""
        pair = next((pair for pair in product(sources, targets) if pair[0] != pair[1]), None)
        if pair is None:
            return _Link(0.0, 0.0, 0.0)
        way = self._network.link_costs([pair])[pair]
        return _Link(way.latency, way.per_byte, 0.0)

    @remembered
    def _by_node(self, devices: tuple[int, ...]) -> _ByNode:
        """Devices by their node."""
        found: _ByNode = {}
        for device in devices:
            found.setdefault(self.problem.cluster.node_of[device], []).append(device)
        return found

    @remembered
    def _sizes(self, rows: int) -> tuple[Floats, Floats, Floats]:
        """At each inner cut the ways that messages go, bytes that go on, and bytes that come back."""
        numerics, graph = next(iter(self.bounds.views.values())).costs.numerics, self.problem.graph

        def size(values: tuple[str, ...]) -> float:
            return float(sum(numerics.bytes_of(value, graph.value(value), rows) for value in values))

        inner = self.bounds.crossing[1:-1]
        ways = [bool(sent) + bool(back) for sent, back in inner]
        ahead, behind = ([size(values) for values in own] for own in zip(*inner, strict=True))
        return np.array(ways, dtype=float), np.array(ahead), np.array(behind)


def _leaving(far: _Link, devices: tuple[int, ...], nodes: tuple[_ByNode, _ByNode], others: int) -> float:
    """Seconds a byte of all, evenly on `devices`, takes at least where those in no node of the others go far."""
    outside = [len(own) for node, own in nodes[0].items() if node not in nodes[1]]
    if not outside:
        return 0.0
    return max(far.whole * max(outside), far.lone * sum(outside) / others) / len(devices)


def _ways(borders: Floats, rows: int) -> Floats:
    """Latency, and seconds for a byte that goes on and for one that comes back, of all devices together, for so many
    rows: every replica has its whole share of them, rounded down."""
    latency, alone, ahead, behind, *replicas = borders
    own, its = (rows // count * count / rows for count in replicas)
    return np.array([latency, np.maximum(alone, ahead * own), np.maximum(alone, behind * its)])


def _seconds(way: Floats, crossing: tuple[Floats, Floats, Floats]) -> Floats:
    """Latencies and bytes both ways."""
    found: Floats = way[0] * crossing[0] + way[1] * crossing[1] + way[2] * crossing[2]
    return found


def _before(each: Floats) -> Floats:
    """The least of what is before each; of the first 0."""
    found: Floats = np.append(0.0, np.minimum.accumulate(each)[:-1])
    return found
