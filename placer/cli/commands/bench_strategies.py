"""`placer bench strategies`: every strategy on the same problems, by the same budgets and seeds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import RenderableType

from placer.api import capture
from placer.cli.options import Json, print_result
from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from placer.io.files import write_text
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.report.documents import Document
from placer.report.printing import seconds_text, share_text, table
from placer.search.asked import Budget, budget_of
from placer.search.comparison import Case, Outcome, Standing, best_seconds, compared, keep, kept_outcomes, standings
from placer.search.problem import BUILT_IN, Problem

BASELINES = ("single", "data", "sharded", "even", "megatron")
CLASSIC = ("heft", "etf", "sct", "critical_path", "greedy", "metis")
STRATEGIES = (*BASELINES, *CLASSIC, "stages", "min_cut", "local", "genetic", "policy", "auto")
# With --quick: some minutes on two cores.
QUICK_PROBLEMS, QUICK_BUDGET = 8, "200,10s"


def strategies(
    models: Annotated[list[str] | None, typer.Argument(help="As for `placer plan`, each on every cluster.")] = None,
    cluster: Annotated[list[str] | None, typer.Option(help="As for `placer plan`; several times.")] = None,
    generated: Annotated[int, typer.Option(min=0, help="So many drawn problems beside the models.")] = 24,
    sizes: Annotated[Literal["small", "large"], typer.Option(help="Of the drawn problems.")] = "small",
    only: Annotated[
        str, typer.Option("--strategies", help="Names separated by commas.", show_default=False)
    ] = ",".join(STRATEGIES),
    budget: Annotated[str, typer.Option(help="Of each search: evaluations, seconds, or both.")] = "1000,30s",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each search.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_PROBLEMS} drawn problems, {QUICK_BUDGET} each.")
    ] = False,
    rows: Annotated[Path | None, typer.Option(help="Keep outcomes in this file, and go on from it.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write all outcomes.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table.")] = None,
    json: Json = False,
) -> None:
    """Gap of each strategy to the best plan any of them found: median, worst, shares within 5% and 1%, seconds."""
    names = _known(only)
    limits = budget_of(QUICK_BUDGET if quick else budget)
    cases = [*_captured(models or [], cluster or ["h100x8"]), *_drawn(QUICK_PROBLEMS if quick else generated, sizes)]
    if not cases:
        raise UsageError("there is nothing to compare on; name a model, or a number of problems with --generated")
    outcomes = _outcomes(cases, names, range(seeds), limits, rows)
    found = standings(outcomes)
    if as_csv is not None:
        write_text(as_csv, _csv(outcomes))
    if markdown is not None:
        write_text(markdown, _markdown(found))
    print_result(_view(found), _document(found, outcomes), json)


def _outcomes(
    cases: Sequence[Case], names: Sequence[str], seeds: Sequence[int], budget: Budget, rows: Path | None
) -> list[Outcome]:
    """Those that a file keeps and the others, which are added to it one by one."""
    known = () if rows is None else kept_outcomes(rows)
    asked = {case.name for case in cases}
    outcomes = [outcome for outcome in known if outcome.case in asked and outcome.strategy in names]
    for outcome in compared(cases, names, seeds, budget, known):
        if rows is not None:
            keep(rows, outcome)
        outcomes.append(outcome)
    return outcomes


def _known(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in BUILT_IN]
    if unknown:
        raise UsageError(f"--strategies names {unknown[0]!r}; known: {', '.join(BUILT_IN)}")
    return names


def _captured(models: Sequence[str], clusters: Sequence[str]) -> Iterator[Case]:
    for model in models:
        for spec in clusters:
            machines = Cluster.load(spec)
            graph = capture(model, devices=machines.size)
            problem = Problem(
                graph=graph, cluster=machines, settings=RunSettings(), rows=graph.rows,
                model=ModelRef(kind="module", reference=graph.name, fingerprint=""),
            )  # fmt: skip
            yield Case(name=f"{model} on {spec}", problem=problem)


def _drawn(count: int, sizes: str) -> Iterator[Case]:
    from placer.strategies.policy.drawn import LARGER, SEEN, drawn_problem

    for seed in range(count):
        problem = drawn_problem(seed, LARGER if sizes == "large" else SEEN)
        yield Case(name=f"drawn {sizes} {seed} ({problem.graph.name})", problem=problem)


def _view(found: Sequence[Standing]) -> RenderableType:
    view = table("strategy", "solved", "median gap", "worst gap", "within 5%", "within 1%", "search", left=1)
    for own in found:
        view.add_row(*_cells(own))
    return view


def _cells(own: Standing) -> tuple[str, ...]:
    gaps = ("-" if gap is None else share_text(gap) for gap in (own.median_gap, own.worst_gap))
    near = (share_text(own.near), share_text(own.nearer))
    return own.strategy, f"{own.solved} of {own.runs}", *gaps, *near, seconds_text(own.search_time_seconds)


def _markdown(found: Sequence[Standing]) -> str:
    heads = ("strategy", "solved", "median gap", "worst gap", "within 5%", "within 1%", "seconds of a search (median)")
    lines = [heads, ("---",) * len(heads), *(_cells(own) for own in found)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _csv(outcomes: Sequence[Outcome]) -> str:
    best, text = best_seconds(outcomes), io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*(field.name for field in fields(Outcome)), "gap"])
    for outcome in outcomes:
        seconds = outcome.step_time_seconds
        writer.writerow([*asdict(outcome).values(), "" if seconds is None else seconds / best[outcome.case] - 1])
    return text.getvalue()


def _document(found: Sequence[Standing], outcomes: Sequence[Outcome]) -> Document:
    return {"strategies": [asdict(own) for own in found], "outcomes": [asdict(outcome) for outcome in outcomes]}
