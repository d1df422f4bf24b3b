"""`report_page(plan)`: one HTML file with everything in it. A content policy forbids it to load anything."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from placer.plans.plan import Plan
from placer.report.page.charts import Section, embedded, library
from placer.report.page.choice import choice_section
from placer.report.page.costs import costs_section
from placer.report.page.devices import devices_section
from placer.report.page.markup import Markup, cards, text
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

# Nothing is loaded; scripts and styles are those in the file; pictures are those a chart saves of itself.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


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
    return _page(headline(plan), _figures(plan), sections)


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


def _page(title: str, figures: Markup, sections: Iterable[Section]) -> str:
    shown = list(sections)
    charts = [part for section in shown for part in section.parts if not isinstance(part, str)]
    script, places = embedded(charts)
    found = iter(places)
    bodies = [
        f'<section><h2 id="{_anchor(section)}">{text(section.title)}</h2>'
        + "".join(part if isinstance(part, str) else next(found) for part in section.parts)
        + "</section>"
        for section in shown
    ]
    links = "".join(f'<a href="#{_anchor(section)}">{text(section.title)}</a>' for section in shown)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_data("page.css")}</style>'
        f"{library()}</head><body><main><h1>{text(title)}</h1>{figures}"
        f'<nav aria-label="Sections">{links}</nav>{"".join(bodies)}</main>{script}<script>{_data("page.js")}</script>'
        "</body></html>\n"
    )


def _anchor(section: Section) -> str:
    return "-".join(section.title.lower().split())


def _data(name: str) -> str:
    return (files("placer.report.page") / name).read_text()
