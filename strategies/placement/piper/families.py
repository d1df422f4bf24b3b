"""Families of ideals of a Piper problem: all of them where they are few, else those along several orders of the nodes.

A node needs its successors here: an ideal is what is left after some stages were cut off. Where there are too many, a
family holds the ideals along some topological orders, one of which keeps the bytes over the border low; around the cuts
of a plan, all those that differ by few nodes join it (`widened`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placer.errors import UsageError
from placer.placement.published_planners.piper import PiperProblem, PiperStage
from placer.strategies.engine.arrays import Flags, Floats
from placer.strategies.engine.ideals import (
    Priority,
    by_number,
    every_ideal,
    greedy_order,
    grown,
    members,
    prefixes,
    shrunk,
)


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
    every = every_ideal(successors, limit)
    some = _along_orders(problem, successors) if every is None else set(every)
    return _family(some, len(successors), complete=every is not None)


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
        ring = {other for at in ring for other in (*grown(at, successors), *shrunk(at, successors))} - near
        near |= set(sorted(ring)[: max(0, limit - len(near))])
    known = {sum(1 << int(node) for node in np.flatnonzero(row)) for row in family.inside}  # as bits
    return _family(near | known, len(successors), complete=family.complete)


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


def _along_orders(problem: PiperProblem, successors: list[int]) -> set[int]:
    """The ideals along the orders that take the first, the last, the shallowest ready node, or the least border."""
    depth = _depths(successors)
    index = {node.id: i for i, node in enumerate(problem.nodes)}
    edges = [(1 << index[e.source], 1 << index[e.target], e.bytes) for e in problem.edges]

    def border(node: int, ideal: int, _: int) -> float:
        after = ideal | 1 << node
        return sum(size for source, target, size in edges if after & target and not after & source)

    priorities: tuple[Priority, ...] = (
        by_number,
        lambda node, _, __: -node,
        lambda node, _, __: depth[node],
        border,
    )
    return {ideal for priority in priorities for ideal in prefixes(greedy_order(successors, priority))}


def _depths(successors: list[int]) -> list[int]:
    """The most edges between a node and the end, 0 for nodes on a cycle."""
    depth = [0] * len(successors)
    for node in greedy_order(successors, by_number):
        depth[node] = 1 + max((depth[after] for after in members(successors[node])), default=0)
    return depth


def _family(found: set[int], nodes: int, *, complete: bool) -> IdealFamily:
    """Ideals as rows of flags, by size. Raises UsageError where the whole graph is none: the edges form a cycle."""
    ordered = sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))
    if ordered[-1] != (1 << nodes) - 1:
        raise UsageError("the edges form a cycle; a Piper graph has none")
    inside = np.array([[ideal >> node & 1 for node in range(nodes)] for ideal in ordered], dtype=np.bool_)
    return IdealFamily(inside=inside, complete=complete)
