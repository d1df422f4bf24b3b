"""Plans of drawn problems larger than any that the policy was trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.measured.learned.gaps import Row
from placer.errors import InfeasibleError
from placer.search.judge import solve_with
from placer.search.problem import Problem
from placer.strategies.policy.decoding import Limits, Played, Player, ranked, search
from placer.strategies.policy.drawn import LARGER, drawn_problem
from placer.strategies.policy.game import Game
from placer.strategies.policy.greedy import greedy_plans
from placer.strategies.policy.network import Scorer, fresh_scorer, load_scorer
from placer.strategies.policy.outcomes import outcome

BASELINES = ("single", "data", "sharded", "even", "megatron")


def plans_row(seed: int, weights: Path, budgets: Sequence[int]) -> Row:
    """Every rival on the problem of a seed."""
    problem = drawn_problem(seed, LARGER)
    game = Game(problem)
    limits = Limits(evaluations=max(budgets), patience=max(budgets))
    make: dict[str, Callable[[], Scorer | None]] = {
        "trained": lambda: load_scorer(weights), "untuned": lambda: load_scorer(weights),
        "untrained": lambda: fresh_scorer(seed), "random": lambda: None,
    }  # fmt: skip
    players = {}
    for name, scorer in make.items():
        found = search(Player(game, scorer()), limits, seed=seed, learns=name != "untuned")
        players[name] = tuple(_seconds(found[:budget]) for budget in budgets)
    plans = [outcome(problem.costs, plan) for plan in greedy_plans(game)]
    greedy = min((each.verdict.seconds for each in plans if each.legal), default=math.inf)
    others = {"greedy": greedy, "baselines": min(_solved(problem, name) for name in BASELINES)}
    return Row(
        seed=seed, name=problem.graph.name, size=len(problem.graph.blocks), devices=problem.cluster.size,
        players=players, others=others,
    )  # fmt: skip


def _seconds(found: Sequence[Played]) -> float:
    """Of the fastest legal plan."""
    legal = [played for played in ranked(found)[:1] if played.outcome.legal]
    return legal[0].outcome.verdict.seconds if legal else math.inf


def _solved(problem: Problem, name: str) -> float:
    try:
        return solve_with(problem, name).plan.ledger.step_seconds  # type: ignore[union-attr]
    except InfeasibleError:
        return math.inf
