"""What of a plan DeepSpeed's engine cannot run, each reason a function from the plan to words; "" where it can."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import IllegalPlanError
from placer.plans.plan import BY_FSDP, Plan, replica_rows
from placer.program.buckets import shared_parameters
from placer.program.told import told_weights

PRECISIONS = ("float32",)


def require_runnable(plan: Plan) -> None:
    """Raise IllegalPlanError with every reason why DeepSpeed's engine cannot run `plan`."""
    found = [reason for reason in (rule(plan) for rule in RULES) if reason]
    if found:
        listed = "\n".join(f"- {reason}" for reason in found)
        raise IllegalPlanError(
            f"DeepSpeed's engine cannot run this plan:\n{listed}\nRun it with --engine placer, or plan with other pins"
        )


def _precision(plan: Plan) -> str:
    """Others it casts and rounds in its own way."""
    found = plan.settings.precision
    return "" if found in PRECISIONS else f"its precision is {found}; the losses of one device are met in float32 only"


def _compression(plan: Plan) -> str:
    """Its communication_data_type rounds the average of its own buckets, not the plan's sums."""
    found = plan.settings.gradient_compression
    return "" if found == "none" else f"its gradients are summed in {found}, which DeepSpeed would round in its own way"


def _numbers(plan: Plan) -> str:
    """When it is made it sends every parameter as bytes, and torch views no tensor without dims as such."""
    alone = sorted(name for name, one in plan.graph.parameters.items() if not one.shape and not one.buffer)
    return f"parameters are numbers without dims ({', '.join(alone[:3])}), which it cannot send" if alone else ""


def _splits(plan: Plan) -> str:
    """It has no operator splits of its own."""
    return "ops are cut over the devices of a replica, which DeepSpeed leaves to the model" if plan.layouts else ""


def _parts(plan: Plan) -> str:
    """Where no gradient reaches a weight it takes zeros, by which weights decay, or waits."""
    unreached = "the model has opaque parts: a step may not reach every weight, and DeepSpeed moves those all the same"
    return unreached if told_weights(plan.graph) else ""


def _kinds(plan: Plan) -> str:
    """Its accelerator is one for all ranks."""
    kinds = {plan.cluster.devices[device].backend for device in plan.ranks}
    return f"its devices are of several kinds ({', '.join(sorted(kinds))})" if len(kinds) > 1 else ""


def _schedule(plan: Plan) -> str:
    """Its pipeline engine has one training schedule."""
    if plan.positions == 1 and len(plan.stages) == 1:
        return ""
    if len(plan.stages) > plan.positions:
        return f"{len(plan.stages)} stages share {plan.positions} positions; its pipeline has one stage per rank"
    return "" if plan.schedule == "1f1b" else f"its schedule is {plan.schedule}; DeepSpeed's pipeline runs 1f1b"


def _sharding(plan: Plan) -> str:
    """ZeRO 2 and 3 shard gradients between microbatches, which its pipeline engine forbids."""
    kinds = {stage.sharding for stage in plan.stages}
    if len(kinds) > 1:
        return f"its stages shard their state in different ways ({', '.join(sorted(kinds))})"
    return "ZeRO 2 and 3 do not go with its pipeline" if kinds & BY_FSDP and len(plan.stages) > 1 else ""


def _offload(plan: Plan) -> str:
    """Only its ZeRO moves state to the host."""
    whole = any(stage.sharding == "none" for stage in plan.stages)
    kept = plan.settings.offload != "none" and whole
    return "without ZeRO it keeps the optimizer's state on the devices" if kept else ""


def _recompute(plan: Plan) -> str:
    """Its pipeline runs a stage's own blocks; which of their ops run again has not been tried there."""
    chosen = any(stage.recompute == "selective" for stage in plan.stages)
    return "stages run again but for their products (recompute selective)" if chosen else ""


def _ties(plan: Plan) -> str:
    """It ties whole layers, not single parameters."""
    tied = shared_parameters(plan) if len(plan.stages) > 1 else {}
    return f"stages share {', '.join(sorted(tied))}; its pipeline ties whole layers only" if tied else ""


def _replicas(plan: Plan) -> str:
    """Its grid of stages and replicas is rectangular, and every rank takes part in every microbatch."""
    if len(plan.stages) == 1:
        return ""
    if len({stage.replicas for stage in plan.stages}) > 1:
        return "its stages have different numbers of replicas"
    if len({stage.shares for stage in plan.stages}) > 1:
        return "its stages divide the rows differently"
    stage = plan.stages[0]
    parts = {rows for batch in plan.microbatches for rows in replica_rows(batch, stage.shares, stage.replicas)}
    return "a replica has no rows of some microbatch" if 0 in parts else ""


RULES: tuple[Callable[[Plan], str], ...] = (
    _precision,
    _compression,
    _numbers,
    _splits,
    _parts,
    _kinds,
    _schedule,
    _sharding,
    _offload,
    _recompute,
    _ties,
    _replicas,
)
