"""Families of ideals of a Piper problem: all of them where they are few, else those along several orders of the nodes.

An ideal here is a set of nodes that holds every successor of its nodes: what is left after some stages were cut off.
Where there are too many, a family holds the ideals along some topological orders, one of which keeps the bytes over the
border low; around the cuts of a plan, all those that differ by few nodes join it (`widened`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from placer.errors import UsageError
from placer.placement.published_planners.piper import PiperProblem, PiperStage
from placer.strategies.placement.piper.knapsack import Floats

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealFamily:
    """Ideals by ascending size, the empty one first and the whole graph last; `complete` where none is left out.

    `inside[i, j]`: ideal i holds node j, nodes in the order of the problem.
    """

    inside: Flags
    complete: bool


def ideals(problem: PiperProblem, limit: int) -> IdealFamily:
    """All ideals, or, where there are more than `limit`, those along some topological orders."""
    successors = _successors(problem)
    seen, stack = {0}, [0]
    while stack and len(seen) <= limit:
        at = stack.pop()
        for grown in _grown(at, successors):
            if grown not in seen:
                seen.add(grown)
                stack.append(grown)
    complete = len(seen) <= limit
    return _family(seen if complete else _along_orders(problem, successors), len(successors), complete=complete)


def thinned(problem: PiperProblem, family: IdealFamily, keep: int) -> IdealFamily:
    """About `keep` ideals of `family`: of each slice by work, the one with the least bytes over its border."""
    if len(family.inside) <= keep:
        return family
    weight = family.inside @ least_work(problem)
    cut = _border_bytes(problem, family)
    part = np.minimum((weight / max(weight[-1], 1e-300) * keep).astype(np.int64), keep - 1)
    order = np.lexsort((cut, part))
    first = order[np.unique(part[order], return_index=True)[1]]
    kept = sorted({0, len(weight) - 1, *first.tolist()})
    return IdealFamily(inside=family.inside[kept], complete=False)


def widened(
    problem: PiperProblem, family: IdealFamily, stages: tuple[PiperStage, ...], *, steps: int, limit: int
) -> IdealFamily:
    """`family` with the ideals up to `steps` nodes away from the cuts of a plan, `limit` of them at most."""
    successors = _successors(problem)
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    near, left = set[int](), 0
    for stage in reversed(stages):
        left |= sum(1 << index[node] for node in stage.nodes)
        near.add(left)
    ring = near
    for _ in range(steps):
        ring = {other for at in ring for other in (*_grown(at, successors), *_shrunk(at, successors))} - near
        near |= set(sorted(ring)[: max(0, limit - len(near))])
    return _family(near | set(_packed(family)), len(successors), complete=family.complete)


def least_work(problem: PiperProblem) -> Floats:
    """Per node the least devices x time of any variant: a stage of k devices takes at least its sum over k."""
    return np.array([min(t * v.time for t, variants in node.variants for v in variants) for node in problem.nodes])


def _border_bytes(problem: PiperProblem, family: IdealFamily) -> Floats:
    """Bytes over the border of each ideal."""
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    total = np.zeros(len(family.inside))
    for edge in problem.edges:
        source, target = family.inside[:, index[edge.source]], family.inside[:, index[edge.target]]
        total += np.where(target & ~source, edge.bytes, 0.0)
    return total


def _successors(problem: PiperProblem) -> list[int]:
    """Per node the set of its successors as bits."""
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    successors = [0] * len(index)
    for edge in problem.edges:
        successors[index[edge.source]] |= 1 << index[edge.target]
    return successors


def _grown(at: int, successors: list[int]) -> list[int]:
    """The ideals with one node more."""
    return [at | 1 << n for n, after in enumerate(successors) if not at >> n & 1 and after & at == after]


def _shrunk(at: int, successors: list[int]) -> list[int]:
    """The ideals with one node less."""
    inside = [n for n in range(len(successors)) if at >> n & 1]
    needed = 0
    for node in inside:
        needed |= successors[node]
    return [at & ~(1 << node) for node in inside if not needed >> node & 1]


def _along_orders(problem: PiperProblem, successors: list[int]) -> set[int]:
    """The ideals along the orders that take the first, the last, the shallowest ready node, or the least border."""
    depth = _depths(successors)
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    edges = [(1 << index[e.source], 1 << index[e.target], e.bytes) for e in problem.edges]

    def border(ideal: int) -> float:
        return sum(size for source, target, size in edges if ideal & target and not ideal & source)

    def added(before: int, after: int) -> int:
        return (after & ~before).bit_length() - 1

    picks: tuple[Callable[[int, int], float], ...] = (
        added,
        lambda before, after: -added(before, after),
        lambda before, after: depth[added(before, after)],
        lambda before, after: border(after),
    )
    found = {0}
    for pick in picks:
        at = 0
        while ready := _grown(at, successors):
            at = min(ready, key=lambda after, at=at, pick=pick: pick(at, after))  # type: ignore[misc]
            found.add(at)
    return found


def _depths(successors: list[int]) -> list[int]:
    """The most edges between a node and the end, 0 for nodes on a cycle."""
    depth, at = [0] * len(successors), 0
    while ready := _grown(at, successors):
        node = (ready[0] & ~at).bit_length() - 1
        after = [d for n, d in enumerate(depth) if successors[node] >> n & 1]
        depth[node] = 1 + max(after, default=0)
        at = ready[0]
    return depth


def _family(found: set[int], nodes: int, *, complete: bool) -> IdealFamily:
    """Ideals as rows of flags, by size. Raises UsageError where the whole graph is none: the edges form a cycle."""
    ordered = sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))
    if ordered[-1] != (1 << nodes) - 1:
        raise UsageError("the edges form a cycle; a Piper graph has none")
    inside = np.array([[ideal >> node & 1 for node in range(nodes)] for ideal in ordered], dtype=np.bool_)
    return IdealFamily(inside=inside, complete=complete)


def _packed(family: IdealFamily) -> list[int]:
    """Rows of flags as bits."""
    return [sum(1 << int(node) for node in np.flatnonzero(row)) for row in family.inside]
