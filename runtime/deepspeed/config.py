"""The configuration DeepSpeed's engine is given for a plan."""

from __future__ import annotations

from pydantic import JsonValue

from placer.plans import Plan

# Sharding -> ZeRO stage.
ZERO = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}


def config(plan: Plan) -> dict[str, JsonValue]:
    """Batch sizes are nominal (rows are given by hand); clipping is the engine's own, by torch's formula."""
    stage = plan.stages[0]
    zero: dict[str, JsonValue] = {
        "stage": ZERO[stage.sharding],
        "stage3_param_persistence_threshold": 0,
        # It would replace torch's linear for the whole process.
        "memory_efficient_linear": False,
    }
    if plan.settings.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu"}
    found: dict[str, JsonValue] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": len(plan.microbatches),
        "train_batch_size": stage.replicas * len(plan.microbatches),
        "gradient_clipping": plan.settings.clip_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }
    return found
