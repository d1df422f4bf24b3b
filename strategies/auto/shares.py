"""The strategies that `auto` asks, and what of a budget each may use."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from placer.search.problem import Problem

MOVES, FIRST_MOVES, WHOLE_MOVES = "local", "local first", "local whole"
LISTS, WHOLE_LISTS, CUTS = "lists", "lists whole", "min_cut"
BASELINES = ("single", "data", "sharded", "even", LISTS, "megatron")
# What is asked within a budget, and only where the exact search proves nothing of the best plan.
INSTEAD = (LISTS, CUTS, MOVES)
# Of what is left of a budget the share that a strategy may use: what comes after it has the rest. (What baselines find
# is there after hundredths of a second or plans; a model of many classes of blocks has dear layouts, though.)
SHARES = {
    FIRST_MOVES: 1 / 4,
    WHOLE_MOVES: 1 / 2,
    LISTS: 1 / 6,
    WHOLE_LISTS: 1 / 2,
    "megatron": 1 / 4,
    CUTS: 1 / 5,
    "stages": 1 / 2,
    "horizontal": 1 / 2,
}
# Plans that moves may look at where the exact search knows none that fits.
LAST_TRIES = 128
# Plans that moves may look at where a model branches and nothing is proven of its graphs of stages: about as dear as
# what was searched before. (Of `two_towers` and `dlrm` of `examples.branching` on h100x8 a thousand leave 9 and 7%.)
BRANCH_TRIES = 3_000
# Plans that cuts, and moves from these, may look at where a model branches over unlike devices.
CUT_TRIES = 4_000
# The part of a device above which memory may have kept a faster plan from fitting: one of fewer stages holds more.
TIGHT = 0.75
# Seconds below which a strategy is not asked: its first answer takes longer.
LEAST = {CUTS: 0.3}


def hurried(problem: Problem, name: str) -> bool:
    """Whether the share of a strategy is too short for it."""
    left = math.inf if problem.until is None else problem.until - time.perf_counter()
    return name in LEAST and left * SHARES[name] < LEAST[name]


def part(problem: Problem, name: str) -> Problem:
    """The problem with what a strategy may use of the budget."""
    now, share = time.perf_counter(), SHARES.get(name, 1.0)
    return replace(
        problem,
        budget=None if problem.budget is None else math.ceil(problem.budget * share),
        until=None if problem.until is None else now + (problem.until - now) * share,
    )
