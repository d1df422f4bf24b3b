"""Which rank stands where, and which replicas exchange messages.

Connected are the replicas of all positions that have rows in common: they exchange messages with each other only. Where
all positions divide rows alike, these are replica i of each. Where 2 replicas feed 1, they are these 3; of 3 and 2 they
are all 5. Of connected replicas that are alike, which do the same at the same time, some can stand for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

import networkx

from placer.graph import Summed
from placer.plans.plan import Plan, Stage
from placer.plans.schedule import BRANCHED
from placer.plans.transfers import position_of, transfers
from placer.spmd.cross_mesh import Division, overlaps


def rank_of(plan: Plan, position: int, replica: int, inner: int = 0) -> int:
    """Ranks go position by position, replica by replica, then over the devices of a replica, which `inner` numbers."""
    return plan.first_ranks[position] + replica * plan.meshes[position].degree + inner


def position_of_rank(plan: Plan, rank: int) -> int:
    """The position at which a rank stands."""
    return bisect_right(plan.first_ranks, rank) - 1


def like_ranks(plan: Plan, position: int, inner: int = 0) -> tuple[int, ...]:
    """The ranks of a position that hold the same, replica by replica: those over which data parallelism reduces."""
    return tuple(rank_of(plan, position, replica, inner) for replica in range(plan.meshes[position].replicas))


def replica_ranks(plan: Plan, position: int, replica: int) -> tuple[int, ...]:
    """The ranks of one replica."""
    return tuple(rank_of(plan, position, replica, inner) for inner in range(plan.meshes[position].degree))


def line_ranks(plan: Plan, rank: int, fast: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that stand with `rank` along the outer and along the inner axis of its replica, this of `fast`."""
    position = position_of_rank(plan, rank)
    degree, first = plan.meshes[position].degree, plan.first_ranks[position]
    at = (rank - first) % degree
    start = rank - at
    outer = tuple(range(start + at % fast, start + degree, fast))
    return outer, tuple(range(rank - at % fast, rank - at % fast + fast))


def inner_axes(plan: Plan, position: int) -> tuple[int, ...]:
    """The devices of the inner axes of the layouts of a position, of those that have two."""
    used = {plan.stages[s].layout for s, at in enumerate(position_of(plan)) if at == position} - {None}
    return tuple(sorted({plan.layouts[number].inner for number in used if number is not None} - {1}))


def summed_ranks(plan: Plan, stage: int, over: Summed, rank: int) -> tuple[int, ...]:
    """The ranks over which a gradient of a stage is summed that each device of a replica has a part of."""
    if over is Summed.REPLICA:
        position = position_of_rank(plan, rank)
        return replica_ranks(plan, position, (rank - plan.first_ranks[position]) // plan.meshes[position].degree)
    layout = plan.stages[stage].layout
    fast = 1 if layout is None else plan.layouts[layout].inner
    return line_ranks(plan, rank, fast)[over is Summed.INNER]


# For each position the replicas that are connected.
ConnectedReplicas = tuple[tuple[int, ...], ...]


def division(mesh: Stage) -> Division:
    """How the stages of a position divide rows."""
    return Division(mesh.replicas, mesh.shares)


def all_replicas(plan: Plan) -> ConnectedReplicas:
    """Every replica of each position."""
    return tuple(tuple(range(mesh.replicas)) for mesh in plan.meshes)


def connected_replicas(plan: Plan) -> tuple[ConnectedReplicas, ...]:
    """The connected replicas of a plan, in the order of the first position's replicas."""
    first, *others = plan.meshes
    if all(division(mesh).ratios == division(first).ratios for mesh in others):
        return tuple(((replica,),) * plan.positions for replica in range(first.replicas))
    linked: networkx.Graph[_ReplicaPlace] = networkx.Graph()
    linked.add_nodes_from((position, r) for position, mesh in enumerate(plan.meshes) for r in range(mesh.replicas))
    linked.add_edges_from(_neighbours(plan))
    return tuple(
        tuple(tuple(sorted(r for at, r in part if at == position)) for position in range(plan.positions))
        for part in networkx.connected_components(linked)
    )


def connected_with(plan: Plan, position: int, replica: int) -> ConnectedReplicas:
    """The replicas that one is connected with, itself among them."""
    return next(found for found in connected_replicas(plan) if replica in found[position])


_ReplicaPlace = tuple[int, int]


def _neighbours(plan: Plan) -> Iterator[tuple[_ReplicaPlace, _ReplicaPlace]]:
    """Replicas of two positions that exchange messages, with rows in common."""
    for rows in sorted(set(plan.microbatches)):
        for p, q in _partners(plan):
            for overlap in overlaps(rows, division(plan.meshes[p]), division(plan.meshes[q])):
                yield (p, overlap.source), (q, overlap.target)


def _partners(plan: Plan) -> Iterator[tuple[int, int]]:
    """Positions that follow each other; of stages that are a graph those of which one reads what the other makes."""
    if plan.schedule not in BRANCHED:
        return pairwise(range(plan.positions))
    at = position_of(plan)
    return iter(dict.fromkeys((at[transfer.source], at[transfer.target]) for transfer in transfers(plan)))
