"""A model that branches, planned for devices that differ without a budget: no plan of cuts alone is faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.branching import clip
from placer.api import problem
from placer.search.judge import solve_with
from placer.search.problem import Problem

pytestmark = pytest.mark.in_turns


def predicted(given: Problem, strategy: str) -> float:
    plan = solve_with(given, strategy).plan
    assert plan.ledger is not None
    return plan.ledger.step_seconds


def test_auto_is_as_fast_as_cuts_are() -> None:
    made = problem(clip(), "h100x1+a100x1", batch={"input_ids": (256, 77), "pixel_values": (256, 3, 224, 224)})
    assert predicted(made, "auto") <= predicted(replace(made, budget=4_000), "min_cut") * (1 + 1e-9)
