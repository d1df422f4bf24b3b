"""Plans of strategies by measured seconds: predicted beside measured, and each beside the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import RenderableType

from placer.report.bench.runtime import Ratio, ratio
from placer.report.documents import Document
from placer.report.printing import seconds_text, table


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """One plan of a case, with the strategies that chose it: predicted seconds of a step, measured ones by round."""

    case: str
    strategies: tuple[str, ...]
    predicted_seconds: float
    measured_seconds: tuple[float, ...]

    @property
    def off(self) -> Ratio:
        """Measured over predicted seconds, with its interval."""
        return ratio(self.measured_seconds, [self.predicted_seconds] * len(self.measured_seconds))


def beside_fastest(plans: Sequence[MeasuredPlan]) -> list[tuple[MeasuredPlan, Ratio]]:
    """Each plan, case by case, with its measured seconds over those of the case's best prediction, round by round."""
    best: dict[str, MeasuredPlan] = {}
    for plan in plans:
        best[plan.case] = min(plan, best.get(plan.case, plan), key=lambda one: one.predicted_seconds)
    return [(plan, ratio(plan.measured_seconds, best[plan.case].measured_seconds)) for plan in plans]


def measured_view(plans: Sequence[MeasuredPlan]) -> RenderableType:
    """A line for each plan."""
    view = table("case", "strategies", "predicted", "measured", "over predicted", "over the chosen", left=2)
    for plan, beside in beside_fastest(plans):
        middle = sorted(plan.measured_seconds)[len(plan.measured_seconds) // 2]
        view.add_row(
            plan.case, " ".join(plan.strategies), seconds_text(plan.predicted_seconds), seconds_text(middle),
            _ratio(plan.off), _ratio(beside),
        )  # fmt: skip
    return view


def measured_document(plans: Sequence[MeasuredPlan]) -> Document:
    """The same with every round."""
    return {
        "plans": [
            {
                "case": plan.case,
                "strategies": list(plan.strategies),
                "predicted_seconds": plan.predicted_seconds,
                "measured_seconds": list(plan.measured_seconds),
                "measured_over_predicted": asdict(plan.off),
                "measured_over_best_predicted": asdict(beside),
            }
            for plan, beside in beside_fastest(plans)
        ]
    }


def _ratio(found: Ratio) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
