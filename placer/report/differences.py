"""Plans side by side: what they say otherwise, and what that does to seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.plans.plan import Plan
from placer.report.documents import Document, plan_document
from placer.report.plan_table import NOTHING, memory_items, rows_text, seconds_items, stage_rows
from placer.report.printing import bytes_text, seconds_text, share_text, table, titled

# Stages that are told one by one; of more the first and how many there are.
MOST_STAGES = 16
NAMES = ("stage", "blocks", "devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One line of a comparison: what it is, what each plan says, and for seconds and bytes the numbers themselves."""

    name: str
    told: tuple[str, ...]
    numbers: tuple[float | None, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether any plan says something else than the first."""
        return len(set(self.told)) > 1


def choices(plans: Sequence[Plan]) -> list[ComparedRow]:
    """What plans are of and what was chosen, a row for each; stages are told as their table has them."""
    tell: dict[str, Callable[[Plan], str]] = {
        "model": lambda plan: plan.graph.name,
        "model fingerprint": lambda plan: plan.model.fingerprint,
        "cluster": lambda plan: plan.cluster.name,
        "devices used": lambda plan: f"{plan.world_size} of {plan.cluster.size}",
        "precision": lambda plan: plan.settings.precision,
        "optimizer": lambda plan: plan.settings.optimizer,
        "strategy": lambda plan: plan.strategy or "none",
        "schedule": lambda plan: plan.schedule,
        "microbatches": lambda plan: rows_text(plan.microbatches),
        "batch rows": lambda plan: str(plan.rows),
        "bucket": lambda plan: bytes_text(plan.bucket_bytes),
        "stages": lambda plan: str(len(plan.stages)),
        "bound": lambda plan: "none" if plan.bound is None else seconds_text(plan.bound),
    }
    rows = [ComparedRow(name=name, told=tuple(map(of, plans))) for name, of in tell.items()]
    count = max(len(plan.stages) for plan in plans)
    for stage in range(min(count, MOST_STAGES)):
        rows.append(ComparedRow(name=f"stage {stage}", told=tuple(_stage(plan, stage) for plan in plans)))
    return rows


def seconds_rows(plans: Sequence[Plan]) -> list[ComparedRow]:
    """Seconds of a step, and of each cause that some plan has."""
    steps = [plan.ledger.step_seconds if plan.ledger else None for plan in plans]
    each = [dict(seconds_items(plan.ledger.seconds)) if plan.ledger else {} for plan in plans]
    least = NOTHING * max((step or 0.0 for step in steps), default=0.0)
    rows = [_numbers("step", steps, seconds_text)]
    for name in next((own for own in each if own), {}):
        values = [own.get(name) for own in each]
        if any((value or 0.0) > least for value in values):
            rows.append(_numbers(name, values, seconds_text))
    return rows


def bytes_rows(plans: Sequence[Plan]) -> list[ComparedRow]:
    """Bytes on the fullest device of each plan, by category; bytes sent and reduced in a step."""
    fullest = [max(plan.ledger.memory, key=lambda one: one.total) if plan.ledger else None for plan in plans]
    rows = [_numbers("fullest device", [None if one is None else one.total for one in fullest], bytes_text)]
    each = [dict(memory_items(one)) if one else {} for one in fullest]
    for name in next((own for own in each if own), {}):
        values = [own.get(name) for own in each]
        if any(values):
            rows.append(_numbers(name, values, bytes_text))
    ledgers = [plan.ledger for plan in plans]
    rows.append(_numbers("sent between stages", [one.sent_bytes if one else None for one in ledgers], bytes_text))
    rows.append(_numbers("reduced", [one.reduced_bytes if one else None for one in ledgers], bytes_text))
    return rows


def compared_view(plans: Mapping[str, Plan]) -> RenderableType:
    """The three tables; numbers beside the first plan's as a share more or less."""
    names, listed = list(plans), list(plans.values())
    rows = choices(listed)
    same = [row.name for row in rows if not row.differs]
    parts: list[RenderableType] = []
    other = [row for row in rows if row.differs]
    if other:
        parts.append(titled("what differs", _table(names, other)))
    parts.append(Text(f"the same in all: {', '.join(same) or 'nothing'}"))
    parts.append(titled("seconds of a step on its slowest rank", _table(names, seconds_rows(listed))))
    parts.append(titled("bytes on the fullest device, and moved in a step", _table(names, bytes_rows(listed))))
    return Group(*parts)


def compared_document(plans: Mapping[str, Plan]) -> Document:
    """Each plan as `placer explain --json` gives it, and the names of what differs."""
    listed: list[JsonValue] = [plan_document(plan) | {"name": name} for name, plan in plans.items()]
    differs: list[JsonValue] = [row.name for row in choices(list(plans.values())) if row.differs]
    return {"plans": listed, "differs": differs}


def beside_first(row: ComparedRow, at: int) -> str:
    """`+12.3%`: a number beside the first plan's; empty for the first, for words, and where nothing can be divided."""
    if not row.numbers or at == 0:
        return ""
    first, own = row.numbers[0], row.numbers[at]
    if not first or own is None or own == first:
        return ""
    change = own / first - 1
    return f"{'+' if change > 0 else ''}{share_text(change)}"


def _table(names: Sequence[str], rows: Sequence[ComparedRow]) -> RenderableType:
    view = table("", *names, left=1 if rows[0].numbers else 1 + len(names))
    for row in rows:
        cells = []
        for at, told in enumerate(row.told):
            beside = beside_first(row, at)
            cells.append(f"{told} ({beside})" if beside else told)
        view.add_row(row.name, *cells)
    return view


def _stage(plan: Plan, at: int) -> str:
    """`0-5: blocks, on 0-3 (H100), replicas 2, split tensor 2, state whole, recompute no`."""
    if at >= len(plan.stages):
        return "-"
    headers, rows = stage_rows(plan)
    told = dict(zip(headers, rows[at], strict=True))
    more = ", ".join(f"{name} {value}" for name, value in told.items() if name not in NAMES)
    return f"{told['blocks']}, on {told['devices']}, {more}"


def _numbers(name: str, values: Sequence[float | None], text: Callable[[float], str]) -> ComparedRow:
    told = tuple("unknown" if value is None else text(value) for value in values)
    return ComparedRow(name=name, told=told, numbers=tuple(values))
