"""What the policy has learned: drawn problems larger than any it was trained on, the same evaluations for all.

    python -m examples.measured.learned                    50 problems, 64 plans each
    python -m examples.measured.learned --weights FILE     other weights than the shipped ones

Rivals of the trained policy after as many plans as it looked at:

    untrained    the same network as it begins, tuned to each problem in the same way
    random       plans drawn evenly from the legal options of every decision
    greedy       the fastest contiguous pipeline with each device's share of the seconds, over all numbers of positions
    baselines    the fastest plan of single, data, sharded, even and megatron

The gap of a rival is (its seconds - the policy's) / the policy's; without a legal plan it is infinite. Medians with 95%
intervals by bootstrap over problems. Exits 1 where an interval of the gap to untrained, random or greedy reaches 0.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from placer.errors import InfeasibleError
from placer.search.judge import solve_with
from placer.search.problem import Problem
from placer.strategies.policy.decoding import Limits, Played, Player, ranked, search
from placer.strategies.policy.drawn import LARGER, drawn_problem
from placer.strategies.policy.game import Game
from placer.strategies.policy.greedy import greedy_plans
from placer.strategies.policy.network import SHIPPED, Scorer, fresh_scorer, load_scorer, one_thread
from placer.strategies.policy.outcomes import outcome

# Seeds of problems that no training drew (those are from 1,000,000 on) and no test uses.
FIRST_SEED = 70_000
BUDGETS = (1, 16, 64)
LEARNERS = ("trained", "untuned", "untrained", "random")
FIXED = ("greedy", "baselines")
BASELINES = ("single", "data", "sharded", "even", "megatron")
HELD_AGAINST = ("untrained", "random", "greedy")
RESAMPLED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem: of each player the best seconds after each budget, of others their seconds; inf: no legal plan."""

    seed: int
    name: str
    blocks: int
    devices: int
    players: dict[str, tuple[float, ...]]
    others: dict[str, float]

    def gap(self, rival: str, place: int) -> float:
        """Of a rival to the trained policy after the budget at `place`."""
        own = self.players["trained"][place]
        other = self.players[rival][place] if rival in self.players else self.others[rival]
        if math.isinf(own):
            return 0.0 if math.isinf(other) else -1.0
        return other / own - 1


def row(seed: int, weights: Path, budgets: Sequence[int]) -> Row:
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
        seed=seed, name=problem.graph.name, blocks=len(problem.graph.blocks), devices=problem.cluster.size,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The median gap of a rival, its 95% interval, and on how many problems the policy is faster, and slower."""

    rival: str
    plans: int
    median: float
    low: float
    high: float
    faster: int
    slower: int


def gap_of(rows: Sequence[Row], rival: str, plans: int, place: int) -> Gap:
    """Over all problems."""
    gaps, rng = [row.gap(rival, place) for row in rows], random.Random(0)
    medians = sorted(median(rng.choices(gaps, k=len(gaps))) for _ in range(RESAMPLED))
    return Gap(
        rival=rival, plans=plans, median=median(gaps), low=medians[RESAMPLED // 40], high=medians[-RESAMPLED // 40],
        faster=sum(gap > 1e-9 for gap in gaps), slower=sum(gap < -1e-9 for gap in gaps),
    )  # fmt: skip


def printed(gap: Gap, problems: int) -> str:
    """A line of the table."""
    return (
        f"{gap.plans:5d}  {gap.rival:10}  {gap.median:+8.1%}  [{gap.low:+8.1%}, {gap.high:+8.1%}]   "
        f"{gap.faster:3d} of {problems}, slower {gap.slower:3d}"
    )


def main() -> None:
    """Play, compare, print."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.measured.learned", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first problem")
    parser.add_argument("--weights", type=Path, default=SHIPPED)
    parser.add_argument("--plans", type=int, default=max(BUDGETS), help="evaluations a problem")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    budgets = [budget for budget in BUDGETS if budget < given.plans] + [given.plans]
    rows = []
    with one_thread():
        for seed in range(given.seed, given.seed + given.problems):
            start = time.perf_counter()
            rows.append(row(seed, given.weights, budgets))
            told = rows[-1]
            if not given.json:
                best = "  ".join(f"{name} {each[-1] * 1e3:.4g}" for name, each in told.players.items())
                others = "  ".join(f"{name} {each * 1e3:.4g}" for name, each in told.others.items())
                print(
                    f"{seed} {told.name:11} {told.blocks:2d} blocks {told.devices:2d} devices  ms: {best}  {others}"
                    f"   ({time.perf_counter() - start:.0f} s)",
                    flush=True,
                )
    gaps = [
        gap_of(rows, rival, plans, place) for place, plans in enumerate(budgets) for rival in (*LEARNERS[1:], *FIXED)
    ]
    learned = all(gap.low > 0 for gap in gaps if gap.plans == budgets[-1] and gap.rival in HELD_AGAINST)
    if given.json:
        print(json.dumps(_document(rows, gaps, budgets, learned)))
    else:
        print("\nplans  rival           gap   95% interval             policy faster on")
        print("\n".join(printed(gap, len(rows)) for gap in gaps))
    sys.exit(0 if learned else 1)


def _document(rows: Sequence[Row], gaps: Sequence[Gap], budgets: Sequence[int], learned: bool) -> dict[str, object]:
    def known(seconds: float) -> float | None:
        return None if math.isinf(seconds) else seconds

    return {
        "learned": learned,
        "budgets_plans": list(budgets),
        "gaps": [
            {"rival": gap.rival, "plans": gap.plans, "median": known(gap.median), "low": known(gap.low),
             "high": known(gap.high), "faster": gap.faster, "slower": gap.slower}
            for gap in gaps
        ],
        "problems": [
            {"seed": row.seed, "model": row.name, "blocks": row.blocks, "devices": row.devices,
             "seconds": {name: list(map(known, each)) for name, each in row.players.items()}
             | {name: known(each) for name, each in row.others.items()}}
            for row in rows
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
