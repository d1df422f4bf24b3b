"""Whether an optimizer updates each number of a tensor by itself, as it must where a rank has only a piece of it."""

from __future__ import annotations

import torch
from torch import nn

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.data_parallel.optimizer import OptimizerFactory

# Steps of the trial, and by how much of a number's movement a piece may differ: states may have few bits.
STEPS, TOLERANCE = 3, 1e-4


def require_elementwise(plan: Plan, make: OptimizerFactory) -> None:
    """Raise UsageError where the plan cuts parameters and the optimizer moves halves of a tensor otherwise than the
    whole; one that cannot be tried on a tensor of its own is taken at its word."""
    kept = {stage.sharding for stage in plan.stages} - {"none"}
    if not plan.layouts and not kept:
        return
    try:
        off = _difference(make)
    except Exception:
        return
    if off > TOLERANCE:
        how = [*(f"shard={one}" for one in sorted(kept)), *(f"tensor={one.degree}" for one in plan.layouts)]
        raise UsageError(
            f"the optimizer moves halves of a tensor otherwise than the whole (by {off:.1%} of the movement), and the "
            f"plan cuts parameters ({', '.join(dict.fromkeys(how))}): plan with --pin shard=none --pin tensor=1, or "
            "give an optimizer that works element by element"
        )


def _difference(make: OptimizerFactory) -> float:
    """The largest difference between a tensor's movement and that of its halves, by the largest movement."""
    generator = torch.Generator().manual_seed(0)
    begun = torch.randn(4, 6, generator=generator)
    whole = nn.Parameter(begun.clone())
    halves = [nn.Parameter(half.clone()) for half in begun.chunk(2)]
    together, apart = make([whole]), make(halves)
    for _ in range(STEPS):
        gradient = torch.randn(4, 6, generator=generator)
        whole.grad = gradient.clone()
        for half, part in zip(halves, gradient.chunk(2), strict=True):
            half.grad = part.clone() * 1.0
        together.step()
        apart.step()
    moved = (whole.detach() - begun).abs().max().item()
    return (torch.cat([half.detach() for half in halves]) - whole.detach()).abs().max().item() / max(moved, 1e-30)
