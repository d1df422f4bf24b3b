"""Columns: the replicas of all positions that have rows in common, which exchange messages with each other only.

Where all positions divide rows alike, a column is replica i of each. Where 2 replicas feed 1, it is these 3; of 3 and
2 it is all 5. Columns that are alike do the same at the same time: one of them can stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from placer.plans.plan import Plan, Stage
from placer.spmd.cross_mesh import Division, overlaps

# For each position the replicas of one column.
ConnectedReplicas = tuple[tuple[int, ...], ...]


def division(mesh: Stage) -> Division:
    """How the stages of a position divide rows."""
    return Division(mesh.replicas, mesh.shares)


def all_replicas(plan: Plan) -> ConnectedReplicas:
    """Every replica of each position."""
    return tuple(tuple(range(mesh.replicas)) for mesh in plan.meshes)


def connected_replicas(plan: Plan) -> tuple[ConnectedReplicas, ...]:
    """The columns of a plan, in the order of the first position's replicas."""
    first, *others = plan.meshes
    if all(division(mesh).ratios == division(first).ratios for mesh in others):
        return tuple(((replica,),) * plan.positions for replica in range(first.replicas))
    home = _joined(plan)
    found: dict[_ReplicaPlace, list[list[int]]] = {}
    for position, mesh in enumerate(plan.meshes):
        for replica in range(mesh.replicas):
            column = found.setdefault(_find(home, (position, replica)), [[] for _ in plan.meshes])
            column[position].append(replica)
    return tuple(tuple(map(tuple, column)) for column in found.values())


def connected_with(plan: Plan, position: int, replica: int) -> ConnectedReplicas:
    """The column of one replica."""
    return next(column for column in connected_replicas(plan) if replica in column[position])


_ReplicaPlace = tuple[int, int]


def _joined(plan: Plan) -> dict[_ReplicaPlace, _ReplicaPlace]:
    """A forest over (position, replica): those with rows in common are in one tree."""
    home = {(p, r): (p, r) for p, mesh in enumerate(plan.meshes) for r in range(mesh.replicas)}
    for one, other in _neighbours(plan):
        home[_find(home, one)] = _find(home, other)
    return home


def _neighbours(plan: Plan) -> Iterator[tuple[_ReplicaPlace, _ReplicaPlace]]:
    for rows in sorted(set(plan.microbatches)):
        for (p, before), (q, after) in pairwise(enumerate(plan.meshes)):
            for overlap in overlaps(rows, division(before), division(after)):
                yield (p, overlap.source), (q, overlap.target)


def _find(home: dict[_ReplicaPlace, _ReplicaPlace], place: _ReplicaPlace) -> _ReplicaPlace:
    while home[place] != place:
        home[place] = place = home[home[place]]
    return place
