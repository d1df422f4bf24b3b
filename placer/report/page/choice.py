"""What was chosen, on what grounds, and why each runner-up lost."""

from __future__ import annotations

from placer.plans.plan import Plan
from placer.report.experts import expert_placement, experts_text
from placer.report.ops import unknown_ops
from placer.report.page.charts import Section
from placer.report.page.markup import Markup, folded, paragraph, table
from placer.report.plan_table import figures, stage_rows
from placer.report.printing import seconds_text, share_text


def choice_section(plan: Plan) -> Section:
    """The plan in words and tables."""
    headers, rows = stage_rows(plan)
    parts: list[Markup] = [paragraph(figures(plan)), table(headers, rows, left=3)]
    placement = expert_placement(plan)
    if placement:
        parts.append(paragraph(experts_text(placement)))
    if plan.alternatives:
        parts += ["<h3>Runners-up</h3>", _runners_up(plan)]
    notes = [*(f"assumed: {line}" for line in plan.assumptions), *unknown_ops(plan.graph)]
    notes += [f"{plan.cluster.name} was {line}" for line in plan.cluster.doubts]
    if notes:
        parts.append(folded(f"Notes ({len(notes)})", "".join(map(paragraph, notes))))
    return Section("The choice", tuple(parts))


def _runners_up(plan: Plan) -> Markup:
    best = plan.ledger.step_seconds if plan.ledger else None
    rows = []
    for other in plan.alternatives:
        step = "not legal" if other.step_seconds is None else seconds_text(other.step_seconds)
        longer = "" if other.step_seconds is None or best is None else share_text(other.step_seconds / best - 1)
        rows.append((other.name, other.reason, step, longer))
    return table(("plan", "why it lost", "step", "longer by"), rows, left=2)
