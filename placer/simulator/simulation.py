"""The step of a plan, played from its programs: one column of replicas of each class, which stands for all alike.

Replicas that exchange messages with each other only are a column (`connected_replicas`). Columns whose replicas
take equally many rows on equal devices do the same at the same time. Messages are as slow as those of all replicas
sending at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with
from placer.plans.plan import Plan
from placer.program.lowering import lower, rows_of_replica
from placer.program.ranks import ConnectedReplicas, connected_replicas, rank_of
from placer.simulator.durations import Durations
from placer.simulator.engine import play
from placer.simulator.time_breakdown import spent
from placer.simulator.timeline import Timeline


def simulate(plan: Plan) -> Timeline:
    """The timeline of one step; its ledger has the memory of the estimate and the seconds of the slowest rank."""
    costs = Costs(plan.graph, plan.cluster, plan.settings)
    classes = column_classes(plan)
    programs = lower(plan, columns=[members[0] for members in classes])
    slices = play(programs, Durations(plan, costs), plan.cluster)
    seconds = spent(slices)
    ledger = replace(estimate_with(costs, plan), step_seconds=max(entry.end for entry in slices), seconds=seconds)
    sizes = {
        rank_of(plan, position, replica, inner): len(members)
        for members in classes
        for position, replicas in enumerate(members[0])
        for replica in replicas
        for inner in range(plan.meshes[position].degree)
    }
    return Timeline(
        slices=slices,
        ledger=ledger,
        stands_for=tuple((program.rank, sizes[program.rank]) for program in programs),
    )


def column_classes(plan: Plan) -> Sequence[tuple[ConnectedReplicas, ...]]:
    """The columns, those that do the same together."""
    kinds: dict[int, int] = {}
    chips = [kinds.setdefault(id(device), index) for index, device in enumerate(plan.cluster.devices)]
    classes: dict[tuple[object, ...], list[ConnectedReplicas]] = {}
    for column in connected_replicas(plan):
        alike = tuple(_replica(plan, chips, at, replica) for at, own in enumerate(column) for replica in own)
        classes.setdefault((tuple(map(len, column)), alike), []).append(column)
    return tuple(tuple(members) for members in classes.values())


def _replica(plan: Plan, chips: Sequence[int], position: int, replica: int) -> tuple[object, ...]:
    """What a replica takes how long for: its rows, and the kinds of its devices."""
    mesh = plan.meshes[position]
    devices = mesh.devices[replica * mesh.degree : (replica + 1) * mesh.degree]
    return rows_of_replica(plan, position, replica), tuple(chips[device] for device in devices)
