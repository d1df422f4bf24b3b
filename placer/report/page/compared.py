"""`compared_page(plans)`: several plans as one HTML file, their steps on one axis, measured seconds where there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from placer.plans.plan import Plan
from placer.report.differences import ComparedRow, beside_first, bytes_rows, choices, seconds_rows
from placer.report.page.charts import Chart, Section, cause_legend
from placer.report.page.costs import GIB, stacked
from placer.report.page.html_file import html_file
from placer.report.page.markup import Markup, heading, paragraph, table
from placer.report.page.steps import step_legend, timeline_chart
from placer.report.plan_table import memory_items, seconds_items
from placer.report.printing import seconds_text
from placer.report.strategies.measured import MeasuredPlan, beside_fastest
from placer.simulator.simulation import simulate

TITLE = "Plans side by side"


def compared_page(plans: Mapping[str, Plan], measured: Sequence[MeasuredPlan] = ()) -> str:
    """The page of legal plans by name."""
    names, listed = list(plans), list(plans.values())
    rows = choices(listed)
    same = ", ".join(row.name for row in rows if not row.differs)
    sections = [
        Section("What differs", (
            _rows(names, [row for row in rows if row.differs], words=True), paragraph(f"The same in all: {same}."),
        )),
        *([_measured(measured)] if measured else []),
        _costs(names, listed),
        _steps(plans),
    ]  # fmt: skip
    return html_file(TITLE, "", sections)


def _rows(names: Sequence[str], rows: Sequence[ComparedRow], *, words: bool = False) -> Markup:
    cells = [
        (row.name, *(f"{told} {beside_first(row, at)}".strip() for at, told in enumerate(row.told))) for row in rows
    ]
    return table(("", *names), cells, left=1 + words * len(names))


def _costs(names: Sequence[str], plans: Sequence[Plan]) -> Section:
    """A bar for each plan, of seconds and of bytes."""
    ledgers = {name: plan.ledger for name, plan in zip(names, plans, strict=True) if plan.ledger}
    seconds = {name: dict(seconds_items(ledger.seconds)) for name, ledger in ledgers.items()}
    held = {
        name: dict(memory_items(max(ledger.memory, key=lambda one: one.total))) for name, ledger in ledgers.items()
    }  # fmt: skip
    return Section("Costs", (
        heading("Seconds of a step on its slowest rank"), *_bars("seconds", seconds, 1.0),
        _rows(names, seconds_rows(plans)),
        heading("Bytes on the fullest device, each category at its own peak"), *_bars("GiB", held, GIB),
        _rows(names, bytes_rows(plans)),
    ))  # fmt: skip


def _bars(unit: str, each: Mapping[str, Mapping[str, float]], scale: float) -> tuple[Markup | Chart, ...]:
    causes = [name for name in next(iter(each.values()), {}) if any(own[name] > 0 for own in each.values())]
    values = {name: [max(0.0, own[name]) / scale for own in each.values()] for name in causes}
    return cause_legend(causes), stacked(unit, list(each), values)


def _steps(plans: Mapping[str, Plan]) -> Section:
    """Timelines that end where the longest does."""
    played = {name: simulate(plan) for name, plan in plans.items()}
    end = max(one.step_seconds for one in played.values())
    parts: list[Markup | Chart] = [paragraph(f"All axes end at {seconds_text(end)}, the longest step by simulation.")]
    parts.append(step_legend(list(played.values())))
    for name, timeline in played.items():
        parts += [
            heading(f"{name}: {seconds_text(timeline.step_seconds)}"), timeline_chart(plans[name], timeline, end=end),
        ]  # fmt: skip
    return Section("The steps", tuple(parts))


def _measured(plans: Sequence[MeasuredPlan]) -> Section:
    rows = [
        (
            one.strategies[0], seconds_text(one.predicted_seconds), seconds_text(median(one.measured_seconds)),
            str(one.off), str(beside),
        )
        for one, beside in beside_fastest(plans)
    ]  # fmt: skip
    headers = ("plan", "predicted", "measured", "measured over predicted", "over the best predicted")
    told = "Each plan had its turn in every round; in brackets where 95% of resampled ratios lie."
    return Section("Measured", (paragraph(told), table(headers, rows)))
