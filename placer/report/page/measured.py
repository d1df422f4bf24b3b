"""A run beside the prediction: seconds of every step, both ledgers by cause and category, the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.report.comparison import ROUNDING
from placer.report.page.charts import Chart, Section, cause_legend, chart, level
from placer.report.page.costs import stacked
from placer.report.page.markup import Markup, heading, paragraph, table
from placer.report.plan_table import memory_items, seconds_items
from placer.report.printing import bytes_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What a run left behind: of its steps from `first_step` on seconds and losses, and the ledger where it has one."""

    first_step: int
    step_seconds: tuple[float, ...]
    losses: tuple[float, ...]
    measured: Ledger | None = None

    @property
    def steady(self) -> tuple[float, ...]:
        """The seconds of the steps after the first two, which set up buffers; of all where there are no more."""
        return self.step_seconds[2:] or self.step_seconds


def measured_section(plan: Plan, run: MeasuredRun) -> Section:
    """What was predicted beside what happened."""
    predicted = plan.ledger
    parts: list[Markup | Chart] = [paragraph(_told(predicted, run))]
    if run.step_seconds:
        parts += [heading("Seconds of each step"), _line("seconds", run.first_step, run.step_seconds, predicted)]
    if predicted and run.measured:
        parts += _beside(predicted, run.measured)
    if run.losses:
        parts += [heading("Loss"), _line("loss", run.first_step, run.losses, None)]
    return Section("The run", tuple(parts))


def _told(predicted: Ledger | None, run: MeasuredRun) -> str:
    if not run.step_seconds:
        return "The run has no steps."
    middle, spread = median(run.steady), (min(run.steady), max(run.steady))
    told = f"{len(run.step_seconds)} steps; the median is {seconds_text(middle)} (from {seconds_text(spread[0])} to "
    told += f"{seconds_text(spread[1])}, without the first two where there are more)."
    if predicted:
        step = predicted.step_seconds
        told += f" Predicted: {seconds_text(step)}; measured over predicted: {middle / step:.2f}."
    return told


def _line(unit: str, first: int, values: Sequence[float], predicted: Ledger | None) -> Chart:
    drawn = chart(across="step", up=unit, height=240, tooltips=[("step", "@x"), (unit, "@y")])
    steps = [first + at + 1 for at in range(len(values))]
    drawn.line(steps, list(values), line_width=2)
    drawn.scatter(steps, list(values), size=4)
    if predicted:
        level(drawn, predicted.step_seconds)
    return drawn


def _beside(predicted: Ledger, measured: Ledger) -> list[Markup | Chart]:
    both = ("predicted", "measured")
    theirs = dict(seconds_items(measured.seconds))
    small = ROUNDING * predicted.step_seconds
    pairs = {name: (max(value, 0.0), max(theirs[name], 0.0)) for name, value in seconds_items(predicted.seconds)}
    causes = {name: list(pair) for name, pair in pairs.items() if max(pair) > small}
    rows = [(name, *(seconds_text(value) for value in pair), _ratio(*pair)) for name, pair in causes.items()]
    sizes = [(name, *_fullest(predicted, measured, name)) for name, _ in memory_items(predicted.memory[0])]
    rows += [(name, bytes_text(a), bytes_text(b), _ratio(a, b)) for name, a, b in sizes if a or b]
    return [
        heading("Seconds of a step by cause"),
        cause_legend(causes),
        stacked("seconds", both, causes),
        table(("", *both, "measured over predicted"), rows),
    ]


def _fullest(predicted: Ledger, measured: Ledger, name: str) -> tuple[int, int]:
    one, other = (max(dict(memory_items(memory))[name] for memory in of.memory) for of in (predicted, measured))
    return one, other


def _ratio(predicted: float, measured: float) -> str:
    return f"{measured / predicted:.2f}" if predicted and measured else ""
