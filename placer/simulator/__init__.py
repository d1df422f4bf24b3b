"""simulate(plan): the step of a plan, played event by event from the programs its ranks will execute.

Ranks of replicas that take equally many rows on equal devices do the same at the same time: one replica of each such
class is played and stands for all. Its messages are as slow as those of all replicas sending at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placer.costs import Costs
from placer.plans import Plan
from placer.program import lower, rows_of_replica
from placer.simulator.durations import Durations
from placer.simulator.engine import play
from placer.simulator.spent import spent
from placer.timeline import Timeline

__all__ = ["Timeline", "replica_classes", "simulate"]


def simulate(plan: Plan) -> Timeline:
    """The timeline of one step; its ledger has the memory of the estimate and the seconds of the slowest rank."""
    costs = Costs(plan.graph, plan.cluster, plan.settings)
    classes = replica_classes(plan)
    programs = lower(plan, replicas=[members[0] for members in classes])
    slices = play(programs, Durations(plan, costs), plan.cluster)
    seconds = spent(slices)
    ledger = replace(costs.estimate(plan), step_seconds=max(entry.end for entry in slices), seconds=seconds)
    sizes = {members[0]: len(members) for members in classes}
    return Timeline(
        slices=slices,
        ledger=ledger,
        stands_for=tuple((program.rank, sizes[program.replica]) for program in programs),
    )


def replica_classes(plan: Plan) -> Sequence[tuple[int, ...]]:
    """The replicas, those that do the same together."""
    devices = plan.cluster.devices
    kinds = {id(device): index for index, device in enumerate(devices)}
    classes: dict[tuple[object, ...], list[int]] = {}
    for replica in range(plan.stages[0].replicas):
        chips = tuple(
            kinds[id(devices[device])]
            for stage in plan.stages
            for device in stage.devices[replica * stage.degree : (replica + 1) * stage.degree]
        )
        classes.setdefault((rows_of_replica(plan, replica), chips), []).append(replica)
    return tuple(tuple(members) for members in classes.values())
