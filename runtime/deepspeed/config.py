"""The configuration DeepSpeed's engine is given for a plan.

The package deepspeed, imported when it is first needed: it is an extra, and looks for compilers as it loads.
"""

from __future__ import annotations

import logging
import os
import warnings
from functools import cache
from typing import Any

import torch
from pydantic import JsonValue

from placer.errors import require_extra
from placer.plans.plan import Plan

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


@cache
def deepspeed() -> Any:
    """The package. Raises UsageError where it is not installed."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    found = require_extra("deepspeed", "deepspeed")
    # It would compile its own collectives over shared memory, where a killed run can leave a lock that hangs the next.
    found.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed 0.19 calls torch 2.13's collectives by their old names, at every step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+_tensor` is deprecated", FutureWarning)
    # It says at INFO how it is configured, on every rank.
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return found
