"""How much fits, in words and as JSON whose keys carry units."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.report.documents import Document, plan_document
from placer.report.printing import bytes_text, seconds_text
from placer.strategies.advise.fit import Fit

UNITS = {"batch": "rows", "length": "tokens a row", "depth": "layers"}


def fit_view(fit: Fit, grown: str, notes: tuple[str, ...] = ()) -> RenderableType:
    """The largest size, what binds beyond it, the plan it was found with, what is not proven."""
    unit = UNITS[grown]
    lines: list[RenderableType] = [Text(f"the largest {grown} that fits: {fit.size:,} {unit}", style="bold")]
    if fit.refused is not None:
        lines.append(Text(f"{fit.refused:,} {unit} do not fit: {fit.binding}"))
    if fit.plan is not None and fit.plan.ledger is not None:
        lines.append(Text(_with(fit.plan, fit.plan.ledger)))
    lines += [Text(note) for note in (*notes, f"not known: {fit.unproven}")]
    return Group(*lines)


def _with(plan: Plan, ledger: Ledger) -> str:
    return (
        f"with {plan.positions} pipeline positions, {plan.stages[0].replicas} replicas, {len(plan.microbatches)} "
        f"microbatches: {bytes_text(ledger.peak_memory)} on the fullest device, "
        f"{seconds_text(ledger.step_seconds)} a step; a legal plan, not the fastest: placer plan finds that"
    )


def fit_document(fit: Fit, grown: str, notes: tuple[str, ...] = ()) -> Document:
    """The same for machines."""
    return {
        "grown": grown,
        "unit": UNITS[grown],
        "largest": fit.size,
        "step": fit.step,
        "refused": fit.refused,
        "binding": fit.binding,
        "unproven": fit.unproven,
        "tried": [{"size": size, "fits": fits} for size, fits in fit.tried],
        "notes": list(notes),
        "plan": None if fit.plan is None else plan_document(fit.plan),
    }
