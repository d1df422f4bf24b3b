"""Devices that differ, planned by `auto` in seconds: moves have a part of them before the exact search."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import placer.strategies.local.search as local
from placer.search.judge import solve_with
from placer.search.problem import Problem
from problems import unequal_problem

pytestmark = pytest.mark.in_turns

SEED = 14


def answers(given: Problem) -> list[str]:
    found = solve_with(given, "auto")
    return [found.plan.strategy, *(other.name for other in found.alternatives)]


def test_moves_come_before_the_exact_search_where_seconds_may_end_it() -> None:
    given = replace(unequal_problem(SEED), until=time.perf_counter() + 4)
    assert {"local", "stages"} <= set(answers(given))
    assert answers(replace(given, until=time.perf_counter() + 4)).count("local") == 1  # which a proof makes enough


def test_an_interrupt_of_moves_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "search_from", interrupted)
    found = solve_with(replace(unequal_problem(SEED), until=time.perf_counter() + 4), "auto")
    assert found.ended == "interrupt"
