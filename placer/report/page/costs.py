"""Seconds of a step by cause and bytes of devices by category, each as one stacked bar."""

from __future__ import annotations

from collections.abc import Sequence

from placer.costs.step_estimate import costs_of, tightest
from placer.plans.plan import Plan
from placer.report.page.charts import CAUSE_COLORS, Chart, Section, cause_legend, chart
from placer.report.page.markup import Markup, heading, paragraph, table
from placer.report.plan_table import NOTHING, memory_items, seconds_items
from placer.report.printing import bytes_text, seconds_text, share_text

GIB = 2**30


def costs_section(plan: Plan) -> Section:
    """Both bars of a plan with their numbers beside."""
    ledger = plan.ledger
    if ledger is None:
        return Section("Costs", (paragraph("The plan has no prediction: it was edited into one that is not legal."),))
    step = ledger.step_seconds
    causes = [(name, value) for name, value in seconds_items(ledger.seconds) if value > NOTHING * step]
    rows = [(name, seconds_text(value), share_text(value / step)) for name, value in causes]
    parts: list[Markup | Chart] = [
        heading("Seconds of a step on its slowest rank"),
        cause_legend(name for name, _ in causes),
        stacked("seconds", ("step",), {n: [v] for n, v in causes}),
        table(("cause", "seconds", "share"), rows),
    ]
    held = [dict(memory_items(memory)) for memory in ledger.memory]
    names = [name for name in held[0] if any(memory[name] for memory in held)]
    places = [f"position {at}" for at in range(len(held))]
    has = [plan.cluster.devices[device].memory_bytes for device, _ in tightest(costs_of(plan), plan)]
    sizes = [
        (place, *(bytes_text(memory[name]) for name in names), bytes_text(entry.total), bytes_text(size))
        for place, memory, entry, size in zip(places, held, ledger.memory, has, strict=True)
    ]  # fmt: skip
    bars = {name: [memory[name] / GIB for memory in held] for name in names}
    parts += [
        heading("Bytes of a device by pipeline position, each category at its own peak"),
        cause_legend(names),
        stacked("GiB", places, bars),
        table(("position", *names, "at once", "of"), sizes),
    ]
    return Section("Costs", tuple(parts))


def stacked(unit: str, rows: Sequence[str], values: dict[str, list[float]]) -> Chart:
    """A bar for each row, `values` of each name one after another."""
    drawn = chart(
        across=unit, up="", rows=rows, height=80 + 26 * len(rows), tooltips=[("", "$name"), (unit, "@$name")],
        tools="save",
    )  # fmt: skip
    names = list(values)
    drawn.hbar_stack(
        names, y="row", height=0.75, source={"row": list(rows), **values},
        color=[CAUSE_COLORS.get(name, "#79706e") for name in names],
    )  # fmt: skip
    return drawn
