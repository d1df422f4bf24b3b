"""Trains the shipped policy on drawn problems: python -m placer.strategies.policy.train

Writes the weights and, beside them, what was printed: `trained/policy.safetensors`, `trained/training.txt`. The same
arguments on the same machine give the same weights. With --tensorboard also curves.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean

from placer.errors import PlacerError, require_extra
from placer.io.files import write_text
from placer.search.problem import Problem
from placer.strategies.policy.drawn import SEEN, drawn_problem
from placer.strategies.policy.network import SHIPPED, one_thread, save_scorer

# Problems played at a time, and plans of each before the next one.
ENVIRONMENTS = 32
EPISODES = 32
# Rollouts between two lines of the log.
ROLLOUTS_A_LINE = 10


def problems(seed: int, number: int) -> Iterator[Problem]:
    """The problems of one environment: every `ENVIRONMENTS`-th seed from its own on."""
    return (drawn_problem(drawn) for drawn in itertools.count(seed * 10**6 + number, ENVIRONMENTS))


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


def train_policy(*, steps: int, seed: int, out: Path, tensorboard: Path | None = None, command: str = "") -> None:
    """Train for so many decisions, keep weights and log. Raises UsageError where the extra is missing."""
    require_extra("rl", "sb3_contrib")
    from placer.strategies.policy import environment, ppo  # libraries of the extra

    if tensorboard is not None:
        require_extra("report", "tensorboard")
    log = Log()
    log.say(f"$ {command}")
    log.say(f"blocks {SEEN.blocks}, devices {SEEN.devices}, rows {SEEN.rows}; {EPISODES} plans of each problem")
    games = [partial(environment.LayoutGame, problems(seed, k), EPISODES) for k in range(ENVIRONMENTS)]
    with one_thread():
        model = ppo.learner(games, seed=seed, tensorboard=tensorboard)
        model.learn(steps, callback=ppo.Progress(log.rollout))
        policy = model.policy
    assert isinstance(policy, ppo.OptionPolicy)
    save_scorer(policy.scorer, out)
    write_text(out.with_name("training.txt"), "\n".join(log.lines) + "\n")


def main() -> None:
    """Parse, train, keep."""
    parser = argparse.ArgumentParser(prog="python -m placer.strategies.policy.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=560_000, help="decisions (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=SHIPPED, help="where the weights go (default: the shipped ones)")
    parser.add_argument("--tensorboard", type=Path, help="a folder for curves")
    given = parser.parse_args()
    words = [f"--steps {given.steps}", f"--seed {given.seed}"]
    command = shlex.join(["python", "-m", "placer.strategies.policy.train", *" ".join(words).split()])
    try:
        train_policy(steps=given.steps, seed=given.seed, out=given.out, tensorboard=given.tensorboard, command=command)
    except PlacerError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
