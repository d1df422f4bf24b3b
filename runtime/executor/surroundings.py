"""What torch is told by the code around a run: without gradients nothing would be trained, and what autocast around a
step casts is neither what the plan says nor what the model by itself would give there.

A step holds a forward and a backward. One device computes the first alone under autocast, and a plan says by its
precision whether it does; autocast around the whole would reach the backward, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from placer.errors import UsageError
from placer.plans.settings import Precision


def require_gradients() -> None:
    """Raise UsageError for a step where torch keeps nothing for a backward, in which that of one device fails."""
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
        raise UsageError(
            f"step was called under torch.{mode} (or set_grad_enabled(False)), where nothing has a gradient and no "
            "weight would move; call it outside (evaluate and the state dicts may stay within)"
        )


def require_planned_casts(precision: Precision, device: torch.device, what: str) -> None:
    """Raise UsageError where autocast around a run would have the model compute in another type than the plan's."""
    if not torch.is_autocast_enabled(device.type):
        return
    dtype = torch.get_autocast_dtype(device.type)
    if precision == "bfloat16-autocast" and dtype == torch.bfloat16:
        return
    casts = str(dtype).removeprefix("torch.")
    other = f", or plan again with --precision {casts}-autocast, which says it by itself" if casts == "bfloat16" else ""
    raise UsageError(
        f"{what} was called under torch.autocast of {casts}, and the plan's precision is {precision}; call it outside"
        f"{other}"
    )


@contextmanager
def own_casts(device: torch.device) -> Iterator[None]:
    """As if no autocast were around: what a step casts it says itself, each forward anew; no backward and no optimizer
    is under autocast. Weights that torch has cast it keeps until the outermost autocast ends, a forward's own:
    around several steps it would keep those of before an update."""
    told, depth = torch.is_autocast_enabled(device.type), torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    torch.set_autocast_enabled(device.type, False)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.set_autocast_enabled(device.type, told)
        for _ in range(depth):
            torch.autocast_increment_nesting()
