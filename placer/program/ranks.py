"""Where stages sit, what crosses between them, and which replicas exchange messages.

Connected are the replicas of all positions that have rows in common: they exchange messages with each other only. Where
all positions divide rows alike, these are replica i of each. Where 2 replicas feed 1, they are these 3; of 3 and 2 they
are all 5. Of connected replicas that are alike, which do the same at the same time, some can stand for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import networkx

from placer.graph import Graph, Summed
from placer.plans.plan import Plan, Stage
from placer.spmd.cross_mesh import Division, overlaps

# What `made_by` remembers: the values between the blocks of some models.
REMEMBERED = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What stage `source` sends to stage `target` for every microbatch: block outputs, in the order they are made.

    `differentiable` are those of `values` whose gradients come back; it may be empty.
    """

    source: int
    target: int
    values: tuple[str, ...]
    differentiable: tuple[str, ...]


def position_of(plan: Plan) -> tuple[int, ...]:
    """The pipeline position of each stage: the rank of its device set by first use."""
    order: dict[tuple[int, ...], int] = {}
    return tuple(order.setdefault(stage.devices, len(order)) for stage in plan.stages)


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


def transfers(plan: Plan) -> tuple[Transfer, ...]:
    """One transfer for every pair of stages at different positions where the later reads what the earlier makes.

    Values go directly from where they are made to every reader, also over stages between. Inputs and the prologue are
    never sent. Ordered by source, then target.
    """
    graph, positions = plan.graph, position_of(plan)
    crossing: dict[tuple[int, int], set[str]] = {}
    for reference, source, target in _reads(plan):
        if positions[source] != positions[target]:
            crossing.setdefault((source, target), set()).add(reference)
    return tuple(_transfer(graph, *pair, found) for pair, found in sorted(crossing.items()))


def _transfer(graph: Graph, source: int, target: int, found: set[str]) -> Transfer:
    values = tuple(sorted(found, key=made_by))
    differentiable = tuple(value for value in values if graph.value(value).requires_grad)
    return Transfer(source=source, target=target, values=values, differentiable=differentiable)


@lru_cache(maxsize=REMEMBERED)
def made_by(reference: str) -> tuple[int, int]:
    """Block and output number of a block output `b7.0`; (-1, k) for the prologue's."""
    block, output = reference[1:].split(".")
    return int(block), int(output)


def stage_of_block(plan: Plan) -> dict[int, int]:
    """The stage of each block."""
    return {block: s for s, stage in enumerate(plan.stages) for block in range(stage.first, stage.last)}


def _reads(plan: Plan) -> list[tuple[str, int, int]]:
    """(value, stage that makes it, later stage that reads it)."""
    home = stage_of_block(plan)
    found = []
    for index, block in enumerate(plan.graph.blocks):
        for reference in block.inputs:
            if reference.startswith("b") and made_by(reference)[0] >= 0:
                source, target = home[made_by(reference)[0]], home[index]
                if source != target:
                    found.append((reference, source, target))
    return found


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
    """Replicas of two positions that follow each other, with rows in common."""
    for rows in sorted(set(plan.microbatches)):
        for (p, before), (q, after) in pairwise(enumerate(plan.meshes)):
            for overlap in overlaps(rows, division(before), division(after)):
                yield (p, overlap.source), (q, overlap.target)
