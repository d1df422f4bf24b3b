"""How the search went: the best step time over its seconds, and the bound at its end."""

from __future__ import annotations

from placer.plans.plan import Plan
from placer.report.page.charts import Section, chart, legend, level
from placer.report.page.markup import counted, folded, paragraph, table
from placer.report.printing import seconds_text
from placer.search.progress import SearchLog

BEST, BOUND = "#2f6690", "#d9672b"
COLORS = {"best so far": BEST, "bound of what was not looked at yet": BOUND}


def search_section(plan: Plan, log: SearchLog) -> Section:
    """Steps down from plan to plan; a dashed line where the proven bound is."""
    drawn = chart(across="seconds of search", up="step seconds", height=280)
    times, best = [after for after, _ in log.best], [value for _, value in log.best]
    if times:
        drawn.step([*times, log.seconds], [*best, best[-1]], mode="after", line_width=2, color=BEST)
        drawn.scatter(times, best, size=6, color=BEST)
    if log.bounds:
        known = [after for after, _ in log.bounds]
        proven = [value for _, value in log.bounds]
        drawn.step(
            [*known, log.seconds], [*proven, proven[-1]], mode="after", line_width=2, color=BOUND
        )  # fmt: skip
    if plan.bound is not None:
        level(drawn, plan.bound)
    told = (
        f"{counted(len(log.best), 'better plan')} came up in {seconds_text(log.seconds)}. Where several kinds of plans "
        "are searched one after the other, the bound is of the kind at hand, and begins anew with each."
    )
    if plan.bound is not None:
        told += f" The dashed line is the proven bound at the end, {seconds_text(plan.bound)}."
    rows = [(f"{after:.3g} s", seconds_text(value)) for after, value in log.best]
    return Section(
        "The search",
        (paragraph(told), legend(COLORS), drawn, folded("As a table", table(("after", "best step"), rows))),
    )
