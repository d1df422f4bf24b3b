"""What to rent: a table of machines with seconds and dollars, as JSON with keys that carry units, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from placer.report.documents import Document
from placer.report.printing import bytes_text, seconds_text, table, titled
from placer.strategies.advise.machines import HOUR, Answer, Work, cheapest, front

MOST_REASON = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Answers of one model and batch; `unit` is what is counted, tokens or rows."""

    model: str
    batch: str
    unit: str
    answers: tuple[Answer, ...]
    work: Work | None = None

    @property
    def best(self) -> Answer | None:
        """The cheapest within the deadline."""
        return None if self.work is None else cheapest(self.answers, self.work)

    @property
    def found(self) -> bool:
        """Whether there is an answer: a machine that trains the model, within the deadline where there is one."""
        return bool(_able(self)) if self.work is None else self.best is not None


def advice_view(advice: Advice) -> RenderableType:
    """All machines, the front marked; what does not fit, with what binds; the cheapest."""
    chosen = front(advice.answers)
    work, unit = advice.work, advice.unit
    whole = () if work is None else ("hours", "dollars")
    view = table("", "machines", "plan", "$/h", "step", f"{unit}/s", f"$/M {unit}", *whole, "memory", left=3)
    for answer in sorted(_able(advice), key=lambda one: one.dollars_per_million or 0.0):
        cells = [] if work is None else [f"{_hours(answer, work):.3g}", _money(answer.dollars(work.units))]
        view.add_row(
            "*" if answer in chosen else "", _named(answer), answer.plan, _money(answer.offer.dollars_per_hour),
            seconds_text(answer.step_seconds or 0.0), f"{answer.units_per_second:,.0f}",
            _money(answer.dollars_per_million), *cells, bytes_text(answer.peak_memory),
        )  # fmt: skip
    title = f"{advice.model}, {advice.batch} a step; * nothing else is both cheaper and faster"
    return Group(titled(title, view), *_losers(advice), *_verdict(advice))


def _losers(advice: Advice) -> list[RenderableType]:
    lost = [answer for answer in advice.answers if answer.step_seconds is None]
    if not lost:
        return []
    view = table("machines", "why not", left=2)
    for answer in lost:
        text = answer.reason if len(answer.reason) <= MOST_REASON else f"{answer.reason[: MOST_REASON - 3]}..."
        view.add_row(_named(answer), f"not searched: {text}" if answer.late else text)
    return [titled("no plan", view)]


def _verdict(advice: Advice) -> list[RenderableType]:
    work, best = advice.work, advice.best
    if work is None:
        return []
    within = "" if work.deadline is None else f" within {work.deadline / HOUR:.3g} h"
    if best is None:
        return [Text(f"nothing trains {work.units:,.0f} {advice.unit}{within}", style="bold")]
    costs = f"{_hours(best, work):.3g} h, ${_money(best.dollars(work.units))}"
    return [Text(f"the cheapest for {work.units:,.0f} {advice.unit}{within}: {_named(best)}, {costs}", style="bold")]


def advice_document(advice: Advice) -> Document:
    """The same for machines."""
    chosen, best = front(advice.answers), advice.best
    return {
        "model": advice.model,
        "batch": advice.batch,
        "unit": advice.unit,
        "answers": [_document(answer, advice.work) for answer in advice.answers],
        "front": [_named(answer) for answer in chosen],
        "cheapest": None if best is None else _named(best),
    }


def advice_csv(advice: Advice) -> str:
    """A line for each machine and count, names of columns first."""
    rows = [_document(answer, advice.work) for answer in advice.answers]
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _document(answer: Answer, work: Work | None) -> Document:
    offer = answer.offer
    document: Document = {
        "machine": offer.machine,
        "count": offer.count,
        "cluster": offer.cluster.name,
        "devices": offer.cluster.size,
        "dollars_per_hour": offer.dollars_per_hour,
        "price_date": offer.date,
        "price_source": offer.source,
        "fits": answer.step_seconds is not None,
        "searched": not answer.late,
        "reason": answer.reason,
        "step_time_seconds": answer.step_seconds,
        "bound_seconds": answer.bound,
        "units_per_second": answer.units_per_second or None,
        "dollars_per_million_units": answer.dollars_per_million,
        "peak_memory_bytes": answer.peak_memory or None,
        "plan": answer.plan,
    }
    if work is not None:
        document |= {"work_seconds": answer.seconds(work.units), "work_dollars": answer.dollars(work.units)}
    return document


def _able(advice: Advice) -> Sequence[Answer]:
    return [answer for answer in advice.answers if answer.step_seconds is not None]


def _named(answer: Answer) -> str:
    return f"{answer.offer.count} x {answer.offer.machine}"


def _hours(answer: Answer, work: Work) -> float:
    return (answer.seconds(work.units) or 0.0) / HOUR


def _money(dollars: float | None) -> str:
    """`1,234`, `12.3`, `0.0123`."""
    return "" if dollars is None else f"{dollars:,.0f}" if dollars >= 1000 else f"{dollars:.3g}"
