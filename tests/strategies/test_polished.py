"""`min_cut` and `policy` beside the baselines: moves go on from what they find, which is told beside it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from clusters import SLOW, cluster
from graphs import BlockSpec, branching_graph, chain_graph
from placer.cluster.cluster import Link
from placer.errors import Infeasible, InfeasibleError
from placer.search.judge import judge, solve_with
from placer.search.problem import Problem, Solution, strategy
from placer.strategies.min_cut.search import MinCut
from placer.strategies.policy.strategy import Policy
from problems import problem, random_problem, unequal_problem

pytestmark = pytest.mark.in_turns

THIN = Link(name="thin", latency_seconds=1e-5, bandwidth=1e9)
HEAVY = BlockSpec(flops=50_000_000, parameters=200_000)
BASELINES = ("single", "data", "sharded", "even", "megatron", "lists")
ALONE: dict[str, type[MinCut] | type[Policy]] = {"min_cut": MinCut, "policy": Policy}


def towers(devices: int) -> Problem:
    """Two towers that meet, on slow devices with little between them."""
    graph = branching_graph([HEAVY] * 6 + [BlockSpec()], ((), (0,), (1,), (), (3,), (4,), (2, 5)))
    return problem(graph, cluster(per_node=devices, device=SLOW, inside=THIN), rows=8)


PROBLEMS = [towers(2), towers(4), *(draw(seed) for draw in (random_problem, unequal_problem) for seed in range(3))]


def seconds(given: Problem, name: str) -> float:
    """Seconds of a step of the plan of a strategy; infinite without one."""
    try:
        ledger = solve_with(given, name).plan.ledger
    except InfeasibleError:
        return float("inf")
    assert ledger is not None
    return ledger.step_seconds


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("given", PROBLEMS, ids=range(len(PROBLEMS)))
def test_no_baseline_is_faster(given: Problem, name: str) -> None:
    found = seconds(replace(given, budget=200), name)
    assert found <= min(seconds(given, baseline) for baseline in BASELINES) * (1 + 1e-9)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("given", PROBLEMS, ids=range(len(PROBLEMS)))
def test_it_is_no_slower_than_alone_and_says_what_that_was(given: Problem, name: str) -> None:
    given = replace(given, budget=120)
    found = strategy(name).solve(given)
    if isinstance(found, Infeasible):
        assert isinstance(ALONE[name]().solve(given), Infeasible)
        return
    assert found.plan.strategy == name
    for alone in found.alternatives:
        assert alone.name == f"{name} alone"
        assert alone.step_seconds is not None
        assert judge(given.costs, found.plan).seconds < alone.step_seconds
    assert found.evaluations <= 120 + len(("1f1b", "gpipe", "zero-bubble"))


@pytest.mark.parametrize("name", ALONE)
def test_who_knows_plans_is_told_what_the_strategy_finds_alone(name: str) -> None:
    given = replace(towers(2), budget=60)
    known = solve_with(given, "data").plan
    asked = replace(given, known_plans=(known,))
    found, alone = strategy(name).solve(asked), ALONE[name]().solve(asked)
    assert isinstance(found, Solution) and isinstance(alone, Solution)
    assert found.alternatives == ()
    assert found.plan.to_json() == alone.plan.to_json()


@pytest.mark.parametrize("name", ALONE)
def test_the_reason_of_the_strategy_is_told_where_nothing_fits(name: str) -> None:
    tiny = replace(SLOW, memory_bytes=1000)
    asked = replace(
        problem(chain_graph([HEAVY] * 4), cluster(per_node=2, device=tiny, inside=THIN)), until=time.perf_counter() + 5
    )
    found = strategy(name).solve(asked)
    assert isinstance(found, Infeasible)
    assert "memory" in found.binding or "too much" in found.binding


@pytest.mark.parametrize("name", ALONE)
def test_a_budget_that_baselines_use_up_without_a_plan_still_asks_the_strategy(name: str) -> None:
    given = random_problem(0)
    assert seconds(replace(given, budget=1), name) < float("inf")


@pytest.mark.parametrize("name", ALONE)
def test_a_model_without_a_loss_is_told_what_to_give(name: str) -> None:
    graph = chain_graph([HEAVY] * 4)
    lossless = replace(graph, loss=replace(graph.loss, reduction="none"))
    given = replace(problem(lossless, cluster(per_node=2, device=SLOW, inside=THIN)), budget=1)
    found = strategy(name).solve(given)
    assert isinstance(found, Infeasible)
    assert "larger budget" not in found.advice


@pytest.mark.parametrize("where", ["local.search.descended", "min_cut.search.best_placed", "policy.strategy._search"])
def test_an_interrupt_keeps_the_best_so_far(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"placer.strategies.{where}", interrupted)
    for name in [own for own in ALONE if where.startswith((own, "local"))]:
        found = strategy(name).solve(replace(towers(2), budget=200))
        assert isinstance(found, Solution)
        assert found.ended == "interrupt"
