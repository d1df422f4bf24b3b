"""Every strategy that exists on one problem, side by side; the plan the demo runs is one of theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.console import RenderableType

from placer.api import solve
from placer.errors import PlacerError, StrategyError
from placer.plans.plan import Plan
from placer.report.printing import bytes_text, seconds_text, share_text, table, titled
from placer.search.problem import BUILT_IN, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRow:
    """One strategy's plan (None: why there is none in `reason`) and the seconds its search took."""

    strategy: str
    plan: Plan | None
    seconds: float
    reason: str = ""


def contest(problem: Problem) -> Iterator[StrategyRow]:
    """Each built-in strategy's entry, as soon as it is there."""
    for name in BUILT_IN:
        start = time.perf_counter()
        try:
            plan, reason = solve(problem, name), ""
        except PlacerError as error:
            plan, reason = None, str(error)
        yield StrategyRow(strategy=name, plan=plan, seconds=time.perf_counter() - start, reason=reason)


def chosen(entries: tuple[StrategyRow, ...], problem: Problem) -> tuple[Plan, str]:
    """The plan to run, and why: auto's, or the fastest that uses every device where auto's leaves some idle."""
    own = next(entry for entry in entries if entry.strategy == "auto")
    if own.plan is None:
        raise StrategyError(f"auto found no plan for the demo: {own.reason}")
    auto = own.plan
    if auto.world_size == problem.cluster.size:
        return auto, "auto's plan"
    plans = [entry.plan for entry in entries if entry.plan and entry.plan.world_size == problem.cluster.size]
    pinned = solve(replace(problem, pins=replace(problem.pins, pipeline=problem.cluster.size)), "stages")
    best = min((*plans, pinned), key=lambda plan: plan.ledger.step_seconds if plan.ledger else float("inf"))
    return best, (
        f"auto would rather leave {problem.cluster.size - auto.world_size} device idle here; "
        "to have something to run, the fastest plan that uses all of them is taken"
    )


def contest_view(entries: tuple[StrategyRow, ...]) -> RenderableType:
    """The table of all strategies."""
    view = table("strategy", "plan", "step", "bound gap", "bytes", "searched", left=2)
    for entry in entries:
        view.add_row(entry.strategy, *_cells(entry), seconds_text(entry.seconds))
    return titled("every strategy on this problem", view)


def _cells(entry: StrategyRow) -> tuple[str, str, str, str]:
    plan = entry.plan
    if plan is None or plan.ledger is None:
        return entry.reason, "-", "-", "-"
    gap = "-" if plan.gap is None else share_text(plan.gap)
    return layout(plan), seconds_text(plan.ledger.step_seconds), gap, bytes_text(plan.ledger.peak_memory)


def layout(plan: Plan) -> str:
    """A plan in some words: `2 stages x 1, 1f1b, 4 microbatches`."""
    first = plan.stages[0]
    counts = [stage.replicas for stage in plan.stages]
    replicas = str(counts[0]) if len(set(counts)) == 1 else "/".join(map(str, counts))
    words = [f"{len(plan.stages)} stage{'s' * (len(plan.stages) > 1)} x {replicas}"]
    words += [plan.schedule] if len(plan.stages) > 1 else []
    words += [f"{len(plan.microbatches)} microbatch{'es' * (len(plan.microbatches) > 1)}"]
    words += [f"{first.sharding} sharded"] if first.sharding != "none" else []
    words += ["recompute"] if any(stage.recompute for stage in plan.stages) else []
    return ", ".join(words)
