"""`placer bench strategies`: every strategy on the same problems, by the same budgets and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

from placer.cli.options import Json, print_result, require_picture
from placer.cluster.cluster import Cluster
from placer.errors import UsageError, require_extra
from placer.graph import Graph
from placer.io.files import require_writable, write_bytes, write_text
from placer.plans.plan import ModelRef, Plan
from placer.plans.settings import RunSettings
from placer.report.strategies.measured import MeasuredPlan, measured_document, measured_view
from placer.report.strategies.table import strategies_csv, strategies_document, strategies_markdown, strategies_view
from placer.search.asked import Budget, budget_of
from placer.search.comparison import Case, Outcome, compared, keep, kept_outcomes, searched
from placer.search.placed import case_name, compared_files
from placer.search.problem import BUILT_IN, Problem
from placer.search.suite import Suite, SuiteModel, read_suite

BASELINES = ("single", "data", "sharded", "even", "megatron")
CLASSIC = ("heft", "etf", "sct", "critical_path", "greedy", "metis")
STRATEGIES = (*BASELINES, *CLASSIC, "stages", "horizontal", "min_cut", "local", "genetic", "policy", "auto")
# A captured model, for a batch that suits so many devices where none is given.
_Resolved = Callable[[int | None], tuple[ModelRef, Graph]]
# With --quick: some minutes on two cores.
QUICK_PROBLEMS, QUICK_BUDGETS = 8, ("200", "2s")


def strategies(
    models: Annotated[list[str] | None, typer.Argument(help="As for `placer plan`, each on every cluster.")] = None,
    cluster: Annotated[list[str] | None, typer.Option(help="As for `placer plan`; several times.")] = None,
    suite: Annotated[Path | None, typer.Option(help="A YAML file of models, their batches, and clusters.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="A placement file, as for `placer place`; several times.")
    ] = None,
    generated: Annotated[
        int | None, typer.Option(min=0, help="So many drawn problems beside the models.  [default: 24; 0 by a suite]")
    ] = None,
    sizes: Annotated[Literal["small", "large"], typer.Option(help="Of the drawn problems.")] = "small",
    only: Annotated[
        str, typer.Option("--strategies", help="Names separated by commas.", show_default=False)
    ] = ",".join(STRATEGIES),
    budget: Annotated[
        list[str] | None,
        typer.Option(help="Of each search: evaluations, seconds, or both; several times.  [default: 1000 and 30s]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each search that draws.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_PROBLEMS} drawn problems, {' and '.join(QUICK_BUDGETS)} each.")
    ] = False,
    rows: Annotated[Path | None, typer.Option(help="Keep outcomes in this file, and go on from it.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write all outcomes.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots that needs no network.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw how near they come, and how soon: .svg, .png or .pdf.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run the plans on this machine in turns; clusters: local, localx2, ...")
    ] = False,
    rounds: Annotated[int, typer.Option(min=2, help="With --measure: how often each plan has its turn.")] = 5,
    steps: Annotated[int, typer.Option(min=2, help="With --measure: steps of a turn.")] = 20,
    json: Json = False,
) -> None:
    """Gap of each strategy to the best plan any of them found and to what is proven; how soon it is how near."""
    names = _known(only)
    budgets = [budget_of(own) for own in (QUICK_BUDGETS if quick else budget or ("1000", "30s"))]
    _require_places(as_csv, markdown, html)
    if plot is not None:
        require_picture(plot)
    asked = read_suite(str(suite)) if suite is not None else _suite(models or [], cluster or ["h100x8"])
    drawn = generated if generated is not None else 24 * (suite is None and not file)
    count = QUICK_PROBLEMS if quick else drawn
    known = () if rows is None else kept_outcomes(rows)
    if not (asked.models or count or file or known):
        raise UsageError("there is nothing to compare on; name a model, or a number of problems with --generated")
    if measure:
        _require_local(asked)
        found = [one for case in _captured(asked) for one in _measured(case, names, budgets[0], rounds, steps)]
        print_result(measured_view(found), measured_document(found), json)
        return
    cases = (case for found in (_captured(asked), _drawn(count, sizes)) for case in found)
    outcomes = _outcomes(cases, file or [], names, range(seeds), budgets, rows, known)
    for path, made in ((as_csv, strategies_csv), (markdown, strategies_markdown), (html, _page)):
        if path is not None:
            write_text(path, made(outcomes))
    if plot is not None:
        from placer.report.strategies.plot import strategies_plot  # an extra

        write_bytes(plot, strategies_plot(outcomes, plot.suffix.lower()[1:]))
    print_result(strategies_view(outcomes), strategies_document(outcomes), json)


def _page(outcomes: Sequence[Outcome]) -> str:
    from placer.report.strategies.page import strategies_page  # which needs Bokeh

    return strategies_page(outcomes)


def _require_places(*paths: Path | None) -> None:
    """Raise UsageError now for what could not be written after hours of searching."""
    if paths[-1] is not None:
        require_extra("html", "bokeh")
    for path in paths:
        if path is not None:
            require_writable(path)


def _outcomes(
    cases: Iterator[Case], files: Sequence[Path], names: Sequence[str], seeds: Sequence[int],
    budgets: Sequence[Budget], rows: Path | None, known: Sequence[Outcome],
) -> list[Outcome]:  # fmt: skip
    """Those that a file keeps and the others, which are added to it one by one; all that it keeps if nothing else is
    asked for."""
    asked, made = {case_name(path) for path in files}, []
    found = compared(_noted(cases, asked), names, seeds, budgets, known)
    for outcome in chain(compared_files(files, names, budgets, known, seeds), found):
        if rows is not None:
            keep(rows, outcome)
        made.append(outcome)
    return [*(one for one in known if one.case in (asked or {one.case}) and one.strategy in names), *made]


def _noted(cases: Iterator[Case], asked: set[str]) -> Iterator[Case]:
    """The cases, whose names are noted as they come: models are captured when it is their turn."""
    for case in cases:
        asked.add(case.name)
        yield case


def _require_local(suite: Suite) -> None:
    """Raise UsageError where a cluster is not this machine, or there is no model to run."""
    other = next((spec for spec in suite.clusters if not spec.startswith("local")), "")
    if other or not suite.models:
        what = f"the cluster is {other}" if other else "no model is named"
        raise UsageError(
            f"--measure runs plans on this machine, and {what}; name small models and --cluster localx2, say"
        )


def _measured(case: Case, names: Sequence[str], budget: Budget, rounds: int, steps: int) -> list[MeasuredPlan]:
    """The different plans that strategies chose, run in turns."""
    from placer.runtime.bench import measured_in_turns

    plans: dict[object, Plan] = {}
    choosers: dict[object, list[str]] = {}
    for name in names:
        _, plan = searched(case, name, 0, budget)
        if plan is not None:
            key = plan.stages, plan.schedule, plan.microbatches, plan.layouts, plan.bucket_bytes
            plans.setdefault(key, plan)
            choosers.setdefault(key, []).append(name)
    named = {" ".join(choosers[key]): plan for key, plan in plans.items()}
    found = measured_in_turns(named, rounds=rounds, steps=steps) if named else {}
    return [
        MeasuredPlan(
            case=case.name, strategies=tuple(name.split()), measured_seconds=seconds,
            predicted_seconds=named[name].ledger.step_seconds,  # type: ignore[union-attr]
        )
        for name, seconds in found.items()
    ]  # fmt: skip


def _known(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in BUILT_IN]
    if unknown:
        raise UsageError(f"--strategies names {unknown[0]!r}; known: {', '.join(BUILT_IN)}")
    return names


def _suite(models: Sequence[str], clusters: Sequence[str]) -> Suite:
    return Suite(models=tuple(SuiteModel(name=model, model=model) for model in models), clusters=tuple(clusters))


def _captured(suite: Suite) -> Iterator[Case]:
    """Every model on every cluster; captured once where its batch is given."""
    machines = [(spec, Cluster.load(spec)) for spec in suite.clusters] if suite.models else []
    for model in suite.models:
        resolved = lru_cache(partial(_resolved, model))
        for spec, cluster in machines:
            devices = None if model.batch else cluster.size
            yield Case(name=f"{model.name} on {spec}", make=partial(_problem, resolved, devices, cluster))


def _resolved(model: SuiteModel, devices: int | None) -> tuple[ModelRef, Graph]:
    """What a model is called and its graph, for a batch that suits so many devices where none is given."""
    from placer import tracer

    found = tracer.resolve(model.model)
    return found.ref, tracer.capture(found, batch=model.batch or None, devices=devices or 1)


def _problem(resolved: _Resolved, devices: int | None, cluster: Cluster) -> Problem:
    ref, graph = resolved(devices)
    return Problem(graph=graph, cluster=cluster, settings=RunSettings(), rows=graph.rows, model=ref)


def _drawn(count: int, sizes: str) -> Iterator[Case]:
    from placer.strategies.policy.drawn import LARGER, SEEN, drawn_problem

    for seed in range(count):
        problem = drawn_problem(seed, LARGER if sizes == "large" else SEEN)
        yield Case(name=f"drawn {sizes} {seed} ({problem.graph.name})", make=partial(replace, problem))
