"""Rows of `placer bench placement` for Galvatron: its two published searches, in seconds per step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from placer.errors import Infeasible
from placer.placement.benchmark import BenchRow
from placer.placement.published_planners.galvatron import value_of
from placer.placement.published_planners.galvatron_cases import CASES, GalvatronCase, case_problem
from placer.strategies.placement.galvatron import solve_galvatron

FAMILY = "galvatron"
INPUTS = "test_search_inputs.json"


def rows(data: Path) -> Iterator[BenchRow]:
    """A row for every published search; none where the inputs are missing."""
    path = data / "galvatron" / INPUTS
    if path.is_file():
        yield from (row(path, case) for case in CASES)


def row(path: Path, case: GalvatronCase) -> BenchRow:
    """One case, as seconds per step: that is what is bounded from below."""
    problem = case_problem(case, path)
    found = solve_galvatron(problem, per_layer=case.per_layer)
    expected = value_of(problem, case.plan).throughput
    seconds = None if isinstance(found, Infeasible) else problem.batch / found.throughput
    return BenchRow(
        family=FAMILY, problem=case.name, unit="s", setting=f"8 devices, 36 GiB, batch 64 in {case.chunks}",
        value=seconds, known=problem.batch / expected, known_kind="expected plan by this evaluator",
        bound=None if isinstance(found, Infeasible) else problem.batch / found.bound,
        seconds=0.0 if isinstance(found, Infeasible) else found.seconds,
        published=(("Galvatron, expected", problem.batch / case.throughput, None),),
        note=str(found) if isinstance(found, Infeasible) else f"{found.throughput:.6f} samples/s",
    )  # fmt: skip
