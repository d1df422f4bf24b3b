"""Whether one device can take the whole batch at once: pieces of it would prove less."""

from __future__ import annotations

import psutil
import torch

from placer.graph import ITEM_BYTES
from placer.plans.plan import Plan

# Of each weight: itself, its gradient, two moments, and what is kept to undo a pass.
_COPIES = 5


def judge_bytes(plan: Plan, precision: str) -> int:
    """About what the model holds on one device, trained on the whole batch: weights, gradients, moments, what is kept
    for backward."""
    size = {"float64": 8, "bfloat16": 2, "float16": 2}.get(precision, 4)
    types = [p.dtype for p in plan.graph.parameters.values() if p.dtype.startswith(("float", "bfloat"))]
    captured = max((ITEM_BYTES[dtype] for dtype in types), default=4)
    kept = plan.graph.saved_bytes * plan.rows / max(1, plan.graph.rows)
    return round((plan.graph.parameter_bytes * _COPIES + kept) * size / captured)


def shortage(plan: Plan, precision: str, device: torch.device) -> str:
    """Why one device cannot take the whole batch in a precision; "" where it can."""
    needs, free = judge_bytes(plan, precision), _free(device)
    if needs <= free:
        return ""
    return (
        f"one device would hold about {needs / 2**30:.1f} GiB with the whole batch of {plan.rows} rows in {precision}, "
        f"{device} has {free / 2**30:.1f} GiB free"
    )


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
