"""The same as JSON: keys carry their units."""

from __future__ import annotations

from pydantic import JsonValue

from placer.errors import PlacerError
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan, Stage
from placer.report.experts import expert_placement
from placer.report.plan_table import memory_items, seconds_items

Document = dict[str, JsonValue]


def plan_document(plan: Plan) -> Document:
    """A plan and its prediction; the layout by stages, not by ops."""
    document: Document = {
        "model": plan.graph.name,
        "model_fingerprint": plan.model.fingerprint,
        "cluster": plan.cluster.name,
        "strategy": plan.strategy,
        "seed": plan.seed,
        "precision": plan.settings.precision,
        "schedule": plan.schedule,
        "world_size": plan.world_size,
        "batch_rows": plan.rows,
        "microbatch_rows": list(plan.microbatches),
        "bucket_bytes": plan.bucket_bytes,
        "reduces_beside_backward": plan.reduces_beside,
        "stages": [_stage(plan, stage) for stage in plan.stages],
        "bound_seconds": plan.bound,
        "gap": plan.gap,
        "alternatives": [
            {"name": other.name, "step_time_seconds": other.step_seconds, "reason": other.reason}
            for other in plan.alternatives
        ],
        "assumptions": list(plan.assumptions),
    }
    if plan.settings.gradient_compression != "none":
        document["gradient_compression"] = plan.settings.gradient_compression
        document["changes_mathematics"] = plan.compresses
    placement = expert_placement(plan)
    if placement:
        document["experts"] = [list(held) for held in placement.experts]
        document["expert_token_shares"] = list(placement.shares)
    return document | (ledger_document(plan.ledger) if plan.ledger else {})


def ledger_document(ledger: Ledger) -> Document:
    """Seconds and bytes of one step."""
    return {
        "step_time_seconds": ledger.step_seconds,
        "rows_per_second": ledger.rows_per_second,
        "mfu": ledger.mfu,
        "model_flops": ledger.flops,
        "peak_memory_bytes": ledger.peak_memory,
        "sent_bytes": ledger.sent_bytes,
        "reduced_bytes": ledger.reduced_bytes,
        "time": {f"{name}_seconds": value for name, value in seconds_items(ledger.seconds)},
        "memory": [
            {f"{name}_bytes": value for name, value in (*memory_items(entry), ("at_once", entry.total))}
            for entry in ledger.memory
        ],
    }


def error_document(error: PlacerError) -> Document:
    """What went wrong, for machines."""
    return {"error": type(error).__name__, "message": str(error)}


def _stage(plan: Plan, stage: Stage) -> JsonValue:
    graph = plan.graph
    known = stage.layout is not None and stage.layout < len(plan.layouts)
    layout = plan.layouts[stage.layout] if known and stage.layout is not None else None
    blocks = graph.blocks[stage.first : stage.last]  # none of a plan that names others than there are
    return {
        "first_block": blocks[0].name if blocks else None,
        "last_block": blocks[-1].name if blocks else None,
        "blocks": stage.last - stage.first,
        "devices": list(stage.devices),
        "replicas": stage.replicas,
        "shares": list(stage.shares or (1,) * stage.replicas),
        "devices_per_replica": stage.degree,
        "axis": "" if layout is None else layout.axis,
        "axes": {} if layout is None else dict(layout.axes),
        "sharding": stage.sharding,
        "recompute": stage.recompute,
        "recomputed_blocks": stage.recomputed,
    }
