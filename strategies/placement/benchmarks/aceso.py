"""Rows of `placer bench placement` for Aceso: the published plan and ours by one evaluator under one memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from placer.errors import Infeasible
from placer.placement.benchmark import BenchRow
from placer.placement.published_planners.aceso import step_of
from placer.placement.published_planners.aceso_cases import CASES, MEMORY_MB, AcesoCase, case_problem, published_plan
from placer.strategies.placement.aceso.search import solve_aceso

FAMILY = "aceso"
PROFILES = "profiled-time-miniset"


def rows(data: Path) -> Iterator[BenchRow]:
    """A row for every published case; none where the measurements are missing."""
    folder = data / "aceso" / PROFILES
    if folder.is_dir():
        yield from (row(folder, case) for case in CASES)


def row(folder: Path, case: AcesoCase) -> BenchRow:
    """One case."""
    problem = case_problem(case, folder)
    published = step_of(problem, published_plan(case)).milliseconds
    found = solve_aceso(problem)
    missing = isinstance(found, Infeasible)
    rest = tuple((f"{name}, measured", case.global_batch / rate, None) for name, rate in case.throughput)
    return BenchRow(
        family=FAMILY, problem=case.name, unit="s", setting=f"4 V100, {MEMORY_MB:.0f} MB, batch {case.global_batch}",
        value=None if isinstance(found, Infeasible) else found.milliseconds / 1000,
        bound=None if isinstance(found, Infeasible) else found.bound / 1000,
        seconds=0.0 if isinstance(found, Infeasible) else found.seconds,
        known=published / 1000, known_kind="published plan by this evaluator",
        published=(("Aceso, predicted", case.predicted_ms / 1000, case.search_seconds), *rest),
        note=str(found) if missing else "",
    )  # fmt: skip
