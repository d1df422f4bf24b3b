"""The exact search against the enumeration of every plan, on 200 random small problems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest

from placer import steptime
from placer.cluster import Cluster, Node
from placer.errors import InfeasibleError
from placer.search import Problem, solve_with
from placer.strategies import pricing
from problems import random_problem

PROBLEMS = 200
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Answer:
    """Seconds of a step and the bound; None where nothing fits."""

    seconds: float | None
    bound: float | None = None


def answer(problem: Problem, name: str) -> Answer:
    try:
        found = solve_with(problem, name)
    except InfeasibleError:
        return Answer(None)
    assert found.plan.ledger is not None
    return Answer(found.plan.ledger.step_seconds, found.bound)


@cache
def enumerated(seed: int) -> Answer:
    return answer(random_problem(seed), "exhaustive")


def same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return abs(first - second) <= TOLERANCE * max(first, second)


@pytest.mark.parametrize("start", range(0, PROBLEMS, 20))
def test_stages_finds_the_value_of_the_enumeration_and_proves_it(start: int) -> None:
    for seed in range(start, start + 20):
        wanted, found = enumerated(seed), answer(random_problem(seed), "stages")
        assert same(found.seconds, wanted.seconds), f"problem {seed}: {found} instead of {wanted}"
        assert same(found.bound, found.seconds), f"problem {seed}: bound {found.bound} of {found.seconds}"


def test_the_random_problems_are_the_hard_kind() -> None:
    infeasible = sum(enumerated(seed).seconds is None for seed in range(PROBLEMS))
    bound_by_memory = sum(memory_binds(seed) for seed in range(PROBLEMS))
    unequal = sum(len({block.kind for block in random_problem(seed).graph.blocks}) > 1 for seed in range(PROBLEMS))
    assert infeasible >= 0.10 * PROBLEMS
    assert bound_by_memory >= 0.30 * PROBLEMS
    assert bound_by_memory - infeasible >= 0.10 * PROBLEMS
    assert unequal >= 0.50 * PROBLEMS


def memory_binds(seed: int) -> bool:
    """Whether unlimited memory would give a faster plan, or any."""
    tight = enumerated(seed).seconds
    if tight is None:
        return True
    free = random_problem(seed)
    roomy = answer(replace(free, cluster=without_limits(free.cluster)), "stages").seconds
    assert roomy is not None
    return roomy < tight * (1 - TOLERANCE)


def without_limits(cluster: Cluster) -> Cluster:
    def roomy(node: Node) -> Node:
        return replace(node, devices=tuple((replace(chip, memory_bytes=2**50), n) for chip, n in node.devices))

    return replace(cluster, groups=tuple((roomy(node), count) for node, count in cluster.groups))


def wrong_fill(part: steptime.Terms) -> steptime.Terms:
    return replace(part, fill=0.0)


def wrong_steady(part: steptime.Terms) -> steptime.Terms:
    return replace(part, steady=2 * part.steady)


def wrong_tail(part: steptime.Terms) -> steptime.Terms:
    return replace(part, tail=5 * part.tail)


@pytest.mark.parametrize("plant", [wrong_fill, wrong_steady, wrong_tail], ids=lambda plant: plant.__name__)
def test_a_wrong_cost_term_in_the_dynamic_program_is_caught(plant, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    right = steptime.terms
    monkeypatch.setattr(pricing, "terms", lambda *given, **named: plant(right(*given, **named)))
    seeds = range(40)
    found = [answer(random_problem(seed), "stages") for seed in seeds]
    assert not all(same(one.seconds, enumerated(seed).seconds) for seed, one in zip(seeds, found, strict=True))


def test_a_dynamic_program_that_ignores_memory_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing.Pricing, "_fits", lambda *_: True)
    caught = 0
    for seed in range(30):
        try:
            caught += not same(answer(random_problem(seed), "stages").seconds, enumerated(seed).seconds)
        except Exception as error:  # the judge refuses the plan: that is being caught too
            assert type(error).__name__ == "StrategyError"
            caught += 1
    assert caught
