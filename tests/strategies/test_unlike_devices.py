"""Devices that differ, planned by `auto`: moves have a say beside the exact search, which tries likely shares alone."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import placer.strategies.local.search as local
from placer.search.judge import solve_with
from placer.search.problem import Problem, Solution
from problems import unequal_problem

# Of which other shares of the rows than likely ones are some percent faster.
SEEDS = (14, 54)


def predicted(found: Solution) -> float:
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


def answers(given: Problem) -> list[str]:
    found = solve_with(given, "auto")
    return [found.plan.strategy, *(other.name for other in found.alternatives)]


@pytest.mark.parametrize("seed", SEEDS)
def test_other_shares_than_likely_ones_are_found(seed: int) -> None:
    given = unequal_problem(seed)
    found, likely = solve_with(given, "auto"), solve_with(given, "stages")
    assert predicted(found) < 0.97 * predicted(likely)
    assert found.bound is None  # the proof is of the likely ones


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_come_before_the_exact_search_where_seconds_may_end_it(seed: int) -> None:
    given = replace(unequal_problem(seed), until=time.perf_counter() + 4)
    assert {"local", "stages"} <= set(answers(given))
    assert answers(replace(given, until=time.perf_counter() + 4)).count("local") == 1  # which a proof makes enough


def test_an_interrupt_of_moves_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "search_from", interrupted)
    found = solve_with(unequal_problem(SEEDS[0]), "auto")
    assert found.ended == "interrupt"
