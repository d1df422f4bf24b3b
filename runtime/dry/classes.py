"""rank_classes(plan): ranks in classes whose dry runs are alike but for the ranks they name.

Ranks are of one class where they stand at the same position (and so have the same stages), hold the same of what a
replica divides (`like_devices`), have the same rows of every microbatch, the same kind of device, and are of the first
replica or not: the first is the one whose whole gradients enter the norm.
"""

from __future__ import annotations

from itertools import product

from placer.plans import Plan
from placer.program import degree, like_devices, rank_of, rows_of_replica


def rank_classes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks of each class, in order."""
    inner_class = {inner: number for number, inners in enumerate(like_devices(plan)) for inner in inners}
    rows = [rows_of_replica(plan, replica) for replica in range(plan.stages[0].replicas)]
    found: dict[object, list[int]] = {}
    for position, replica, inner in product(range(plan.positions), range(len(rows)), range(degree(plan))):
        rank = rank_of(plan, position, replica, inner)
        chip = plan.cluster.devices[plan.ranks[rank]]
        key = position, inner_class[inner], rows[replica], chip.name, replica == 0
        found.setdefault(key, []).append(rank)
    return tuple(map(tuple, found.values()))
