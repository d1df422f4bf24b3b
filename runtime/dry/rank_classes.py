"""rank_classes(plan): ranks in classes whose dry runs are alike but for the ranks they name.

Ranks are of one class where they stand at the same position (and so have the same stages), hold the same of what a
replica divides (`like_devices`), have the same rows of every microbatch, the same kind of device, and are of the first
replica or not: the first is the one whose whole gradients enter the norm.
"""

from __future__ import annotations

from itertools import product

from placer.plans.plan import Plan
from placer.program.lowering import like_devices, rows_of_replica
from placer.program.ranks import rank_of
from placer.spmd.cross_mesh import Mesh


def rank_classes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The ranks of each class, in order."""
    inner_class = {inner: number for number, inners in enumerate(like_devices(plan)) for inner in inners}
    # Where positions divide rows differently each replica has partners and parts of its own; where GPUs and CPUs sum
    # together, or hosts by themselves first, each rank.
    alike = len({Mesh.of(plan, mesh).division.ratios for mesh in plan.meshes}) == 1
    apart = plan.cluster.unlike(plan.ranks) or any(stage.reduction != "flat" for stage in plan.stages)
    found: dict[object, list[int]] = {}
    for position, mesh in enumerate(plan.meshes):
        rows = [rows_of_replica(plan, position, replica) for replica in range(mesh.replicas)]
        for replica, inner in product(range(mesh.replicas), range(mesh.degree)):
            rank = rank_of(plan, position, replica, inner)
            chip = plan.cluster.devices[plan.ranks[rank]]
            partners = rank if apart else None if alike else replica
            key = position, inner_class[inner], rows[replica], partners, chip.name, replica == 0
            found.setdefault(key, []).append(rank)
    return tuple(map(tuple, found.values()))
