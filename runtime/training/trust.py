"""What must hold before a plan runs here: the same model and versions as when it was made; where it was made."""

from __future__ import annotations

from placer import tracer
from placer.plans.compression import compression_text
from placer.plans.plan import Plan
from placer.plans.provenance import made_elsewhere, require_fresh


def require_runnable(plan: Plan, *, compiled: bool = False) -> tuple[str, ...]:
    """Warnings to print before `plan` runs here, by torch.compile where `compiled`.

    Raises StalePlanError where model or versions have changed.
    """
    require_fresh(plan, model=_model_now(plan))
    warnings = _unheeded(plan, compiled)
    if not made_elsewhere(plan):
        return warnings
    imported = plan.model.reference if plan.model.kind == "factory" else "transformers"
    loss = f" and the loss {plan.model.loss}" if plan.model.loss else ""
    named = f"running it imports and runs code that it names: {imported}{loss}"
    return (f"this plan was made on another machine; {named}", *warnings)


def _unheeded(plan: Plan, compiled: bool) -> tuple[str, ...]:
    """Settings that the prediction heeds and the runtime does not."""
    found = []
    if plan.compresses:
        found.append(compression_text(plan.settings.gradient_compression))
    if plan.settings.float8 or plan.settings.float4:
        found.append(
            "the plan was priced with products in 8 bits or fewer (float8, float4), which this runtime does not make: "
            "it is slower"
        )
    if plan.settings.tensor_overlap:
        found.append(
            "the plan was priced with collectives beside products (tensor_overlap), which here come after them"
        )
    if plan.settings.stack != "torch":
        found.append(f"the plan was priced with layers as {plan.settings.stack} runs them (stack); this runs torch's")
    if plan.settings.attention == "tuned":
        found.append("the plan was priced with the vendor's own attention kernel; this runs the one that torch chooses")
    if plan.settings.tf32:
        found.append(
            "the plan was priced with products in TensorFloat-32 (tf32), which torch makes where it is told "
            'torch.set_float32_matmul_precision("high"), and which round otherwise than float32'
        )
    if plan.settings.fusion and not compiled:
        found.append("the plan was priced with fused kernels (fusion) and runs op by op: it is slower; give --compile")
    if compiled and not plan.settings.fusion:
        found.append("the plan was priced op by op and runs compiled: it keeps and takes less than predicted")
    sharded = any(
        stage.by_fsdp and stage.replicas > 1 and not plan.cluster.on_cpus(stage.devices) for stage in plan.stages
    )
    if not plan.settings.overlap and sharded:
        found.append("the plan was priced without overlap, but FSDP2 communicates beside the passes: it is faster")
    return tuple(found)


def _model_now(plan: Plan) -> str | None:
    """The fingerprint of what the plan's reference leads to now; None where only the caller has the model."""
    if plan.model.kind == "module":
        return None
    return tracer.fingerprint(tracer.resolve(plan.model).build("meta"))
