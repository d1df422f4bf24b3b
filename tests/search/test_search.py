"""A strategy never grades itself: what `solve_with` refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from graphs import BlockSpec, chain_graph
from placer.costs.step_estimate import estimate
from placer.errors import StrategyError, UsageError
from placer.plans.plan import Plan
from placer.search import judge
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem, Solution, strategy
from problems import cluster, device, problem


def given() -> Problem:
    return problem(chain_graph([BlockSpec()] * 3, rows=4), cluster(device(), device()))


class Boaster:
    """Finds what `single` finds and returns `change` of it."""

    name = "boaster"
    exact = False

    def __init__(self, change: Callable[[Solution], Solution]) -> None:
        self.change = change

    def solve(self, problem: Problem) -> Solution:
        found = strategy("single").solve(replace(problem, pins=Pins()))
        assert isinstance(found, Solution)
        return self.change(found)


def boast(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Solution], Solution], asked: Problem | None = None
) -> Solution:
    monkeypatch.setattr(judge, "strategy", lambda name: Boaster(change))
    return solve_with(asked or given(), "boaster")


def faster(found: Solution) -> Solution:
    ledger = estimate(found.plan)
    return replace(found, plan=replace(found.plan, ledger=replace(ledger, step_seconds=ledger.step_seconds / 2)))


def other_rows(found: Solution) -> Solution:
    return replace(found, plan=replace(found.plan, microbatches=(1,)))


def missing_blocks(found: Solution) -> Solution:
    return replace(found, plan=replace(found.plan, stages=(replace(found.plan.stages[0], last=1),)))


def high_bound(found: Solution) -> Solution:
    return replace(found, bound=2 * estimate(found.plan).step_seconds)


def no_number_for_a_bound(found: Solution) -> Solution:
    return replace(found, bound=float("nan"))


def other_settings(found: Solution) -> Solution:
    settings = replace(found.plan.settings, fusion=not found.plan.settings.fusion)
    return replace(found, plan=replace(found.plan, settings=settings))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (faster, "claims"),
        (other_rows, "rows"),
        (missing_blocks, "block"),
        (high_bound, "bound"),
        (no_number_for_a_bound, "bound"),
        (other_settings, "settings"),
    ],
    ids=lambda entry: getattr(entry, "__name__", ""),
)
def test_a_false_claim_is_an_error(
    change: Callable[[Solution], Solution], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StrategyError, match=complaint):
        boast(monkeypatch, change)


def test_a_plan_that_breaks_a_pin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StrategyError, match="pin data=2"):
        boast(monkeypatch, lambda found: found, replace(given(), pins=Pins(data=2)))


@pytest.mark.parametrize(("share", "gap"), [(0.5, 1.0), (0.0, None)], ids=["half", "proves nothing"])
def test_an_honest_strategy_gets_its_ledger_and_bound_into_the_plan(
    share: float, gap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = boast(monkeypatch, lambda found: replace(found, bound=share * estimate(found.plan).step_seconds)).plan
    assert plan.ledger == estimate(plan)
    assert plan.gap == gap
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(("change", "what"), [({"rows": 0}, "rows"), ({"budget": 0}, "budget")], ids=str)
def test_an_empty_problem_is_refused(change: dict[str, int], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        solve_with(replace(given(), **change), "auto")  # type: ignore[arg-type]


def test_a_third_partys_strategy_comes_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "theirs"

        def load(self) -> Callable[[], Boaster]:
            return lambda: Boaster(lambda found: found)

    monkeypatch.setattr(
        "placer.search.problem.entry_points", lambda group: [Point()] if group == "placer.strategies" else []
    )
    assert solve_with(given(), "theirs").plan.strategy == "theirs"
