"""What the policies have learned: drawn problems larger than any they were trained on, the same evaluations for all.

    python -m examples.measured.learned                    50 problems, 64 plans each
    python -m examples.measured.learned --game orders      50 graphs with given costs, 64 orders each
    python -m examples.measured.learned --weights FILE     other weights than the shipped ones

Rivals of the trained policy after as many plans or orders as it looked at:

    untuned      the trained network, not tuned to the problem
    untrained    the same network as it begins, tuned to each problem in the same way
    random       plans or orders drawn evenly from the legal options of every decision
    greedy       of plans: the fastest contiguous pipeline with each device's share of the seconds, over all numbers of
                 positions; of graphs: the list scheduler of this name
    baselines    the fastest plan of single, data, sharded, even and megatron
    heft         the list scheduler
    sorted       the best cuts of four topological orders: by number, depth first, light first, heavy first

The gap of a rival is (its seconds - the policy's) / the policy's; without anything legal it is infinite. Medians with
95% intervals by bootstrap over problems. Exits 1 where an interval of the gap to untrained, random or greedy reaches 0.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from examples.measured.learned.gaps import Gap, Row, gap_of, printed
from examples.measured.learned.orders import orders_row
from examples.measured.learned.plans import plans_row
from placer.strategies.policy.network import SHIPPED, one_thread
from placer.strategies.policy.orders.numbers_seen import SHIPPED as SHIPPED_ORDERS

# Seeds of problems that no training drew (those are from 1,000,000 on) and no test uses.
FIRST_SEED = 70_000
BUDGETS = (1, 16, 64)
LEARNERS = ("trained", "untuned", "untrained", "random")
HELD_AGAINST = ("untrained", "random", "greedy")


class Compared(NamedTuple):
    """A game: its shipped weights, what is made of the problem of a seed, the rivals without a budget, its unit."""

    weights: Path
    row: Callable[[int, Path, Sequence[int]], Row]
    fixed: tuple[str, ...]
    unit: float


# Seconds are printed as milliseconds; given costs are in a unit of their own.
GAMES = {
    "plans": Compared(SHIPPED, plans_row, ("greedy", "baselines"), 1e3),
    "orders": Compared(SHIPPED_ORDERS, orders_row, ("greedy", "heft", "sorted"), 1.0),
}


def main() -> None:
    """Play, compare, print."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.measured.learned", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--game", choices=GAMES, default="plans")
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="of the first problem")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--plans", type=int, default=max(BUDGETS), help="evaluations a problem")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    game = GAMES[given.game]
    budgets = [budget for budget in BUDGETS if budget < given.plans] + [given.plans]
    rows = []
    with one_thread():
        for seed in range(given.seed, given.seed + given.problems):
            start = time.perf_counter()
            rows.append(game.row(seed, given.weights or game.weights, budgets))
            told = rows[-1]
            if not given.json:
                best = "  ".join(f"{name} {each[-1] * game.unit:.4g}" for name, each in told.players.items())
                others = "  ".join(f"{name} {each * game.unit:.4g}" for name, each in told.others.items())
                print(
                    f"{seed} {told.name:11} {told.size:3d} {told.devices:2d} devices  {best}  {others}"
                    f"   ({time.perf_counter() - start:.0f} s)",
                    flush=True,
                )
    gaps = [
        gap_of(rows, rival, plans, place)
        for place, plans in enumerate(budgets)
        for rival in (*LEARNERS[1:], *game.fixed)
    ]
    learned = all(gap.low > 0 for gap in gaps if gap.plans == budgets[-1] and gap.rival in HELD_AGAINST)
    if given.json:
        print(json.dumps(_document(rows, gaps, budgets, learned)))
    else:
        print("\nlooks  rival           gap   95% interval             policy faster on")
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
            {"seed": row.seed, "model": row.name, "blocks": row.size, "devices": row.devices,
             "seconds": {name: list(map(known, each)) for name, each in row.players.items()}
             | {name: known(each) for name, each in row.others.items()}}
            for row in rows
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
