"""Trains the shipped policies on drawn problems: python -m placer.strategies.policy.train [--game orders]

Writes the weights and, beside them, what was printed: `trained/policy.safetensors` and `trained/training.txt` of the
game that makes plans, `orders.safetensors` and `orders-training.txt` of that which orders graphs. The same arguments on
the same machine give the same weights. With --tensorboard also curves.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from placer.errors import PlacerError, require_extra
from placer.io.files import write_text
from placer.search.problem import Problem
from placer.strategies.policy.drawn import SEEN, drawn_problem
from placer.strategies.policy.network import LAYOUT, SHIPPED, Shown, one_thread, save_scorer
from placer.strategies.policy.orders.drawn_graphs import SEEN as SEEN_NODES
from placer.strategies.policy.orders.drawn_graphs import drawn_graph
from placer.strategies.policy.orders.numbers_seen import ORDERS
from placer.strategies.policy.orders.numbers_seen import SHIPPED as SHIPPED_ORDERS

# Problems played at a time, and plans of each before the next one.
ENVIRONMENTS = 32
EPISODES = 32
# Rollouts between two lines of the log.
ROLLOUTS_A_LINE = 10


def seeds(seed: int, number: int) -> Iterator[int]:
    """The seeds of one environment's problems: every `ENVIRONMENTS`-th from its own on."""
    return itertools.count(seed * 10**6 + number, ENVIRONMENTS)


def problems(seed: int, number: int) -> Iterator[Problem]:
    """The problems of one environment."""
    return map(drawn_problem, seeds(seed, number))


class Log:
    """Lines of a training, printed and kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._began, self._rollouts, self._episodes = time.perf_counter(), 0, 0
        self._rewards: list[float] = []
        self._legal: list[bool] = []

    def say(self, line: str) -> None:
        """One line."""
        self.lines.append(line)
        print(line, flush=True)

    def rollout(self, steps: int, rewards: list[float], legal: list[bool]) -> None:
        """After a rollout; some are told together."""
        self._rewards += rewards
        self._legal += legal
        self._episodes += len(rewards)
        self._rollouts += 1
        if self._rollouts % ROLLOUTS_A_LINE == 0:
            seconds = time.perf_counter() - self._began
            self.say(
                f"{steps:9d} steps {self._episodes:7d} plans {seconds:6.0f} s   reward {fmean(self._rewards):+.3f}   "
                f"fits {fmean(self._legal):6.1%}"
            )
            self._rewards, self._legal = [], []


# What makes each environment of a training; gymnasium's, which is imported where one is made.
Environments = Sequence[Callable[[], Any]]


class Learned(NamedTuple):
    """What is learned by a game: where its weights and log go, how many decisions are made, what its network is shown,
    and its environments for a seed, told in a line."""

    out: Path
    log: str
    steps: int
    shown: Shown
    told: str
    environments: Callable[[int], Environments]


def _plans(seed: int) -> Environments:
    from placer.strategies.policy.environment import LayoutGame  # a library of the extra

    return [partial(LayoutGame, problems(seed, k), EPISODES) for k in range(ENVIRONMENTS)]


def _orders(seed: int) -> Environments:
    from placer.strategies.policy.orders.environment import OrderGame  # a library of the extra

    return [partial(OrderGame, map(drawn_graph, seeds(seed, k)), EPISODES) for k in range(ENVIRONMENTS)]


GAMES = {
    "plans": Learned(
        SHIPPED, "training.txt", 560_000, LAYOUT,
        f"blocks {SEEN.blocks}, devices {SEEN.devices}, rows {SEEN.rows}; {EPISODES} plans of each problem", _plans,
    ),
    "orders": Learned(
        SHIPPED_ORDERS, "orders-training.txt", 400_000, ORDERS,
        f"nodes {SEEN_NODES}; {EPISODES} orders of each graph", _orders,
    ),
}  # fmt: skip


def train_policy(
    *, steps: int, seed: int, out: Path | None = None, game: str = "plans", tensorboard: Path | None = None,
    command: str = "",
) -> None:  # fmt: skip
    """Train for so many decisions, keep weights (out None: where the shipped ones lie) and log. Raises UsageError where
    the extra is missing."""
    require_extra("rl", "sb3_contrib")
    from placer.strategies.policy import ppo  # libraries of the extra

    if tensorboard is not None:
        require_extra("report", "tensorboard")
    learned = GAMES[game]
    out = out or learned.out
    log = Log()
    log.say(f"$ {command}")
    log.say(learned.told)
    with one_thread():
        model = ppo.learner(learned.environments(seed), learned.shown, seed=seed, tensorboard=tensorboard)
        model.learn(steps, callback=ppo.Progress(log.rollout))
        policy = model.policy
    assert isinstance(policy, ppo.OptionPolicy)
    save_scorer(policy.scorer, out)
    write_text(out.with_name(learned.log), "\n".join(log.lines) + "\n")


def main() -> None:
    """Parse, train, keep."""
    parser = argparse.ArgumentParser(prog="python -m placer.strategies.policy.train", description=__doc__)
    parser.add_argument("--game", choices=GAMES, default="plans", help="what is made (default %(default)s)")
    parser.add_argument("--steps", type=int, help="decisions (default: as many as the shipped policy of the game)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the weights go (default: the shipped ones)")
    parser.add_argument("--tensorboard", type=Path, help="a folder for curves")
    given = parser.parse_args()
    steps = given.steps or GAMES[given.game].steps
    command = f"python -m placer.strategies.policy.train --game {given.game} --steps {steps} --seed {given.seed}"
    try:
        train_policy(
            steps=steps, seed=given.seed, out=given.out, game=given.game, tensorboard=given.tensorboard,
            command=command,
        )  # fmt: skip
    except PlacerError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
