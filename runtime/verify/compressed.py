"""What summing gradients in 16 bits rounds, and so what those of a plan may be off by.

Each of k replicas casts what it has to c bits, and the sum of all is rounded each time one is added, k roundings on the
way of each element at most:

    error <= k u * sum over replicas |their part|         u: half of what separates 1 from the next number of the type

What the parts are is not known to one device, of which only their sum comes: they are taken for UNITS times the largest
element of it. An element whose parts cancel more than that is off by more, and is told; so are gradients that are too
small for the type and vanish, or too large and become infinite: what is left of them is no rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from placer.plans.compression import compression_text
from placer.plans.plan import Plan
from placer.runtime.verify.verdict import UNITS, Allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class SummingRounding:
    """What sums in `dtype` over `replicas` round; nothing where that is empty."""

    dtype: str = ""
    replicas: int = 1

    @property
    def relative(self) -> float:
        """To the size of a tensor of gradients."""
        return UNITS * self.replicas * self._type.eps / 2 if self.dtype else 0.0

    @property
    def told(self) -> str:
        """Beside the precision of the steps."""
        return f" with gradients summed in {self.dtype}" if self.dtype else ""

    @property
    def excepted(self) -> str:
        """What a verdict leaves out."""
        if not self.dtype:
            return ""
        return f", but for gradients that were summed in {self.dtype}, which are within {self.relative:.1e} of its own"

    def of_gradients(self, allowed: Allowed) -> Allowed:
        """What gradients, and their norm, are allowed."""
        return replace(allowed, relative=allowed.relative + self.relative)

    @property
    def _type(self) -> torch.finfo:
        return torch.finfo(getattr(torch, self.dtype))


def summing_rounding(plan: Plan) -> SummingRounding:
    """Of the sums of a plan's replicas."""
    if not plan.compresses:
        return SummingRounding()
    return SummingRounding(
        dtype=plan.settings.gradient_compression, replicas=max(stage.replicas for stage in plan.stages)
    )


def compression_told(plan: Plan) -> tuple[str, ...]:
    """What it changes, and what is allowed for it."""
    found = summing_rounding(plan)
    if not found.dtype:
        return ()
    return (
        f"{compression_text(found.dtype)}: they and their norm are allowed {found.relative:.1e} of their size for the "
        f"roundings of {found.replicas} replicas, what torch's optimizer makes of them is held as ever; the steps that "
        "are told as in float64 alone sum them whole",
    )
