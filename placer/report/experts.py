"""Which expert lives where: the experts of each device of a replica, and its share of the tokens by given loads."""

from __future__ import annotations

from dataclasses import dataclass

from placer.plans.plan import Plan
from placer.report.printing import share_text
from placer.rules.expert_loads import device_loads, held_experts
from placer.spmd.expert_order import cut_experts, expert_devices

# Devices that a table names one by one.
FEW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlacement:
    """The experts of each device of a replica, and its share of the tokens (empty where no loads were given)."""

    experts: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]


def expert_placement(plan: Plan) -> ExpertPlacement | None:
    """The placement of the plan's experts; None where every device has all of them."""
    for layout in plan.layouts:
        for kind, split in zip(plan.graph.classes, layout.splits, strict=False):  # illegal plans are shown too
            count = 0 if split is None else cut_experts(kind, split)
            if split is not None and count:
                loads, devices = plan.settings.expert_loads, expert_devices(split, layout.degree)
                return ExpertPlacement(
                    experts=held_experts(count, split.experts, devices),
                    shares=device_loads(loads, split.experts, devices) if loads else (),
                )
    return None


def experts_text(placement: ExpertPlacement) -> str:
    """A line: the experts of the first devices, the largest share of the tokens."""
    listed = "; ".join(f"{device}: {_numbers(held)}" for device, held in enumerate(placement.experts[:FEW]))
    more = f"; and {len(placement.experts) - FEW} devices more" if len(placement.experts) > FEW else ""
    if not placement.shares:
        return f"experts of each device of a replica: {listed}{more}"
    most, even = max(placement.shares), 1 / len(placement.shares)
    return (
        f"experts of each device of a replica: {listed}{more}; the fullest gets {share_text(most)} of the tokens, "
        f"an even share is {share_text(even)}"
    )


def _numbers(held: tuple[int, ...]) -> str:
    """`0 3 5`, `0-7`."""
    if len(held) > 2 and held == tuple(range(held[0], held[-1] + 1)):
        return f"{held[0]}-{held[-1]}"
    return " ".join(map(str, held))
