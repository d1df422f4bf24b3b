"""A plan in a notebook: its figures, stages, seconds and bytes as HTML without scripts or pictures."""

from __future__ import annotations

from placer.plans.plan import Plan
from placer.report.page.markup import Markup, folded, paragraph, table, text
from placer.report.plan_table import NOTHING, figures, headline, memory_items, seconds_items, stage_rows
from placer.report.printing import bytes_text, seconds_text, share_text


def plan_html(plan: Plan) -> Markup:
    """What a notebook shows for a plan."""
    headers, rows = stage_rows(plan)
    parts = [f"<b>{text(headline(plan))}</b>", paragraph(figures(plan)), table(headers, rows, left=3)]
    ledger = plan.ledger
    if ledger:
        step = ledger.step_seconds
        causes = [(name, value) for name, value in seconds_items(ledger.seconds) if value > NOTHING * step]
        spent = [(name, seconds_text(value), share_text(value / step)) for name, value in causes]
        fullest = max(ledger.memory, key=lambda one: one.total)
        held = [(name, bytes_text(size)) for name, size in memory_items(fullest) if size]
        parts.append(folded("Seconds of a step on its slowest rank", table(("cause", "seconds", "share"), spent)))
        parts.append(folded("Bytes on the fullest device", table(("category", "bytes"), held)))
    if plan.alternatives:
        lost = [
            (other.name, other.reason, "not legal" if other.step_seconds is None else seconds_text(other.step_seconds))
            for other in plan.alternatives
        ]
        parts.append(folded("Runners-up", table(("plan", "why it lost", "step"), lost, left=2)))
    if plan.assumptions:
        parts.append(folded("Assumed", "".join(map(paragraph, plan.assumptions))))
    return "".join(parts)
