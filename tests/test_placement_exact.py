"""Every exact solver of placement files against trying every placement."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, assume, given, settings

from placement_cases import optimum, problems, small_enough
from placer.errors import InfeasibleError
from placer.placement.answers import PlaceAnswer
from placer.placement.formats import PlaceRequest
from placer.placement.legality import Form
from placer.placement.problem import PlacementProblem
from placer.search import place

TIGHT = 1e-9
# The integer programs count in whole units of at most 1e-11 of all costs together.
COUNTED = 1e-8
QUICK = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])


def answer(problem: PlacementProblem, form: Form) -> PlaceAnswer | None:
    request = PlaceRequest(objective="latency" if form == "latency" else "throughput", free_form=form == "free")
    try:
        return place(problem, request)
    except InfeasibleError:
        return None


def check(problem: PlacementProblem, form: Form, tolerance: float) -> None:
    assume(small_enough(problem))
    best, found = optimum(problem, form), answer(problem, form)
    if found is None:
        assert math.isinf(best)
        return
    assert found.objective == pytest.approx(best, rel=tolerance, abs=tolerance)
    assert found.bound <= best + tolerance
    assert found.bound >= best - COUNTED


@settings(QUICK, max_examples=400)
@given(problems())
def test_contiguous_throughput_is_the_best_of_all_placements(problem: PlacementProblem) -> None:
    check(problem, "contiguous", TIGHT)


@settings(QUICK, max_examples=120)
@given(problems())
def test_free_form_throughput_is_the_best_of_all_placements(problem: PlacementProblem) -> None:
    check(problem, "free", COUNTED)


@settings(QUICK, max_examples=120)
@given(problems(training=False))
def test_latency_is_the_best_of_all_placements(problem: PlacementProblem) -> None:
    check(problem, "latency", COUNTED)


@settings(QUICK, max_examples=60)
@given(problems())
def test_free_form_is_never_worse_than_contiguous(problem: PlacementProblem) -> None:
    free, contiguous = answer(problem, "free"), answer(problem, "contiguous")
    if contiguous is not None:
        assert free is not None
        assert free.objective <= contiguous.objective + COUNTED


@settings(QUICK, max_examples=30)
@given(problems())
def test_the_same_problem_gives_the_same_assignment(problem: PlacementProblem) -> None:
    first, second = answer(problem, "contiguous"), answer(problem, "contiguous")
    assert (first and first.assignment) == (second and second.assignment)
