"""`report_page(plan)`: a plan as one HTML file with everything in it."""

from __future__ import annotations

from placer.plans.plan import Plan
from placer.report.page.choice import choice_section
from placer.report.page.costs import costs_section
from placer.report.page.devices import devices_section
from placer.report.page.html_file import html_file
from placer.report.page.markup import Markup, cards
from placer.report.page.measured import MeasuredRun, measured_section
from placer.report.page.memory import memory_section
from placer.report.page.model import model_section
from placer.report.page.roofline import roofline_section
from placer.report.page.search import search_section
from placer.report.page.steps import steps_section
from placer.report.plan_table import headline
from placer.report.printing import bytes_text, seconds_text, share_text
from placer.search.progress import SearchLog
from placer.simulator.simulation import simulate


def report_page(plan: Plan, run: MeasuredRun | None = None, log: SearchLog | None = None) -> str:
    """The page of a legal plan: its prediction, played anew; beside it a run and the log of its search where given."""
    timeline = simulate(plan)
    sections = [
        choice_section(plan),
        *([measured_section(plan, run)] if run else []),
        *([search_section(plan, log)] if log else []),
        model_section(plan),
        devices_section(plan),
        steps_section(plan, timeline),
        memory_section(plan, timeline),
        costs_section(plan),
        roofline_section(plan),
    ]
    return html_file(headline(plan), _figures(plan), sections)


def _figures(plan: Plan) -> Markup:
    ledger = plan.ledger
    if ledger is None:
        return ""
    gap = "not known" if plan.gap is None else share_text(plan.gap)
    return cards([
        ("predicted step", seconds_text(ledger.step_seconds)),
        ("rows a second", f"{ledger.rows_per_second:.3g}"),
        ("MFU", share_text(ledger.mfu)),
        ("bubble", share_text(ledger.seconds.bubble / ledger.step_seconds)),
        ("fullest device", bytes_text(ledger.peak_memory)),
        ("at most from the best", gap),
    ])  # fmt: skip
