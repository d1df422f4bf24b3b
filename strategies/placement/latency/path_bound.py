"""A lower bound on the finish time: what a path through the graph must pay, wherever its nodes lie.

A path v1 -> v2 -> ... -> vm is walked one node after the other. An accelerator's set is convex, so it meets the path in
one interval vi..vj, starts after v(i-1) is done and is done before v(j+1) starts. Hence, for every placement,

    finish >= min over ways to cut the path into host nodes and at most K intervals of
              sum of host(v) over host nodes + sum of L(i, j) over intervals,

    L(i, j) = min { load(S) : S holds everything between vi and vj, nothing before v(i-1) or after v(j+1) }.

S need not be legal otherwise, so L is a min cut; where what S must hold does not fit the memory or is not supported,
there is no such interval. The minimum over ways is a dynamic program along the path. Several paths are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from placer.placement.legality import classes
from placer.placement.problem import PlacementProblem
from placer.strategies.engine.ideals import closure, greedy_order, members, turned
from placer.strategies.placement.contraction import hyperedges
from placer.strategies.placement.throughput.hypergraph_cut import cheapest_split

# Larger graphs walk one path only: each takes half a minute.
MOST_NODES = 500
CLOSE = 1e-9


def path_bound(problem: PlacementProblem, upper: float) -> float:
    """The best bound of a few paths, in the problem's unit, at most `upper` (the value of a placement, or infinite)."""
    reach = Reach(problem=problem)
    mean = math.fsum(node.send for node in problem.nodes) / len(problem.nodes)
    keys: tuple[Callable[[int], float], ...] = (
        lambda node: problem.nodes[node].send + mean / 1e6,  # of equally dear paths the longer
        lambda node: 1.0,
        lambda node: problem.nodes[node].accelerator,
        lambda node: problem.nodes[node].host,
    )
    tried: set[tuple[int, ...]] = set()
    bound = 0.0
    for key in keys if len(problem.nodes) <= MOST_NODES else keys[:1]:
        path = reach.heaviest_path(key)
        if path not in tried and bound < upper * (1 - CLOSE):
            bound = max(bound, min(upper, _along(problem, reach, path, upper)))
            tried.add(path)
    return bound


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Who comes before and after whom, as bitsets over nodes; which nodes share a class."""

    problem: PlacementProblem

    @cached_property
    def read(self) -> tuple[int, ...]:
        """The nodes whose output each node reads."""
        return turned([sum(1 << reader for reader in readers) for readers in self.problem.successors])

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The ancestors of each node."""
        return closure(self.read)

    @cached_property
    def after(self) -> tuple[int, ...]:
        """The descendants of each node."""
        return turned(self.before)

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The class of each node."""
        return classes(self.problem)

    @cached_property
    def mates(self) -> tuple[int, ...]:
        """The nodes of each class."""
        found = [0] * (max(self.labels) + 1)
        for node, label in enumerate(self.labels):
            found[label] |= 1 << node
        return tuple(found)

    def closed(self, nodes: int) -> int:
        """The least convex set with whole classes that holds `nodes`."""
        while True:
            whole = before = after = 0
            for node in members(nodes):
                whole |= self.mates[self.labels[node]]
            for node in members(whole):
                before |= self.before[node]
                after |= self.after[node]
            if whole | before & after == nodes:
                return nodes
            nodes = whole | before & after

    def heaviest_path(self, key: Callable[[int], float]) -> tuple[int, ...]:
        """The path of the largest sum of keys, from a source to a sink."""
        weight, back = [0.0] * len(self.read), [-1] * len(self.read)
        for node in greedy_order(self.read, lambda node, _, ready: ready):
            weight[node] += key(node)
            for reader in sorted(self.problem.successors[node]):
                if back[reader] < 0 or weight[node] > weight[reader]:
                    weight[reader], back[reader] = weight[node], node
        node = max(range(len(weight)), key=lambda node: (weight[node], -node))
        path = [node]
        while back[path[-1]] >= 0:
            path.append(back[path[-1]])
        return tuple(reversed(path))


def _along(problem: PlacementProblem, reach: Reach, path: tuple[int, ...], upper: float) -> float:
    """The dynamic program: least[k][i] for the first i nodes of the path and k intervals; nothing beyond `upper`."""
    count = min(problem.accelerators, len(path))
    least = [[math.inf] * (len(path) + 1) for _ in range(count + 1)]
    least[0][0] = 0.0
    blocks = _Blocks(problem=problem, reach=reach, path=path)
    for start, node in enumerate(path):
        if problem.cpus:
            for row in least:
                row[start + 1] = min(row[start + 1], row[start] + problem.nodes[node].host)
        if min(row[start] for row in least[:-1] or least) > upper:
            continue
        for end, load in blocks.starting_at(start):
            for fewer, row in enumerate(least[1:]):
                row[end] = min(row[end], least[fewer][start] + load)
    return min(row[-1] for row in least)


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """L(i, j) of one path."""

    problem: PlacementProblem
    reach: Reach
    path: tuple[int, ...]

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Accelerator time of each class."""
        found = [0.0] * len(self.reach.mates)
        for node, label in zip(self.problem.nodes, self.reach.labels, strict=True):
            found[label] += node.accelerator
        return tuple(found)

    @cached_property
    def edges(self) -> tuple[tuple[tuple[int, ...], float], ...]:
        """Weighted hyperedges over classes."""
        return hyperedges(self.problem, self.reach.labels)

    def starting_at(self, start: int) -> Iterator[tuple[int, float]]:
        """(end, load) of the intervals path[start:end] that an accelerator can hold."""
        held = 0
        for end in range(start + 1, len(self.path) + 1):
            last = self.path[end - 1]
            between = self.reach.before[last] & self.reach.after[self.path[start]]
            held = self.reach.closed(held | 1 << last | between)
            if not self._fits(held):
                return
            barred = self._barred(start, end)
            if not held & barred:
                yield end, self._least_load(held, barred)

    def _fits(self, held: int) -> bool:
        nodes = [self.problem.nodes[node] for node in members(held)]
        return all(node.supported for node in nodes) and math.fsum(n.size for n in nodes) <= self.problem.memory * (
            1 + 1e-12
        )

    def _barred(self, start: int, end: int) -> int:
        """Everything not after v(i-1) can be inside, nor anything before v(j+1): the set would swallow them."""
        found = 0
        if start:
            found |= self.reach.before[self.path[start - 1]] | 1 << self.path[start - 1]
        if end < len(self.path):
            found |= self.reach.after[self.path[end]] | 1 << self.path[end]
        return found

    def _least_load(self, held: int, barred: int) -> float:
        """min { load(S) }; classes of unsupported nodes are barred too."""
        inside, outside = list(self.seconds), [0.0] * len(self.seconds)
        for node in members(held):
            outside[self.reach.labels[node]] = math.inf
        for node in members(barred):
            if math.isinf(outside[self.reach.labels[node]]):
                return math.inf
            inside[self.reach.labels[node]] = math.inf
        return cheapest_split(inside, outside, self.edges).cost
