"""What of a plan changes the mathematics of a step by a setting that says so, and what the judge then computes.

    accepted_differences(plan) -> one sentence for each; the judge does the mathematics that it documents

Batch norm by the rows of a microbatch: in training each batch norm takes the statistics of the rows that one replica of
its stage has of one microbatch, group by group; the running statistics follow replica 0. Gradients that replicas sum in
16 bits: the judge has them whole, and allows what those sums round (`compressed`). Local SGD and stale gradients
are options of `placer execute`, never of a plan: what is verified is the synchronous step.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch

from placer.plans.plan import Plan, Stage, replica_rows
from placer.plans.transfers import position_of, stage_of_block
from placer.runtime.stages.block_code import CutModel
from placer.runtime.verify.compressed import compression_told
from placer.runtime.verify.eager.norms import Groups, NormRows


def accepted_differences(plan: Plan) -> tuple[str, ...]:
    """What the plan's settings change in the mathematics of one device, in words."""
    return (*_of_batch_norms(plan), *compression_told(plan))


def _of_batch_norms(plan: Plan) -> tuple[str, ...]:
    if not _by_microbatch(plan) or not _norms(plan) or not _divided(plan):
        return ()
    counts = tuple(mesh.replicas for mesh in plan.meshes)
    replicas = f"{counts[0]} replicas" if len(set(counts)) == 1 else f"the replicas of its stage ({counts})"
    return (
        f"batch norm normalises each of {len(plan.microbatches)} microbatches x {replicas} by its own rows, in both "
        "runs: one device with the whole batch would take the statistics of all rows; running statistics are those of "
        "replica 0",
    )


def norm_rows(plan: Plan, cut: CutModel) -> NormRows:
    """The groups of rows of each batch norm, in the order of their calls; none where each takes the whole batch."""
    if not _by_microbatch(plan) or not _divided(plan):
        return ()
    stages, positions = stage_of_block(plan), position_of(plan)
    nodes = (node for node in cut.module.graph.nodes if node.target is torch.ops.aten.batch_norm.default)
    meshes = tuple(plan.meshes[positions[stages[cut.home[node]]]] for node in nodes)
    return tuple(_groups(plan.microbatches, mesh) for mesh in meshes)


def _by_microbatch(plan: Plan) -> bool:
    return plan.settings.batch_norm == "microbatch"


def _divided(plan: Plan) -> bool:
    return len(plan.microbatches) > 1 or any(mesh.replicas > 1 for mesh in plan.meshes)


def _norms(plan: Plan) -> bool:
    return any(op.target.startswith("aten.batch_norm") for _, op in plan.graph.ops)


def _groups(microbatches: tuple[int, ...], mesh: Stage) -> Groups:
    """(first row, end, replica 0's) for each replica's rows of each microbatch, where it has any."""
    found = []
    for start, rows in zip(accumulate(microbatches, initial=0), microbatches, strict=False):
        ends = accumulate(replica_rows(rows, mesh.shares, mesh.replicas), initial=start)
        found += [(first, end, replica == 0) for replica, (first, end) in enumerate(pairwise(ends)) if end > first]
    return tuple(found)
