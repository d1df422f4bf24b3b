"""The game of orders for gymnasium: an action is the number of an option, an episode makes one order, its reward comes
at the end: log(reference / the value of its cuts), within [-2, 2]; the reference is the best of `topological_orders`.

An environment plays some episodes of a graph, then goes on to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, log
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import fold, topological_orders
from placer.strategies.placement.orders.cuts import Cuts
from placer.strategies.policy.features import REACH
from placer.strategies.policy.orders.graph_game import ClassGraph, Floats, OrdersMade
from placer.strategies.policy.orders.numbers_seen import MOST, SIZE, options_of, seen

FURTHEST = 2.0


class OrderGame(gymnasium.Env[Floats, np.int64]):
    """Plays `episodes` of each of `problems`, which never end; those without a decision or without cuts that fit are
    passed over."""

    def __init__(self, problems: Iterator[PlacementProblem], episodes: int) -> None:
        self.observation_space = spaces.Box(-REACH, REACH, (SIZE,), np.float32)
        self.action_space = spaces.Discrete(MOST)
        self._problems, self._episodes, self._left = problems, episodes, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """The first state of the next episode; problems come in their own order, whatever the seed."""
        super().reset(seed=seed)
        if self._left == 0:
            self._begin()
        self._left -= 1
        self._made = OrdersMade(self._graph, 1)
        self._forced()
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """The state after option `action`; of a finished order the observation is empty."""
        self._made.take(self._options[:, int(action)])
        self._forced()
        if not self._made.finished:
            return self._seen(), 0.0, False, False, {}
        value = self._cuts.best(tuple(self._made.orders[0])).value
        legal = isfinite(value)
        reward = max(-FURTHEST, min(FURTHEST, log(self._reference / value))) if legal else -FURTHEST
        return np.zeros(SIZE, dtype=np.float32), reward, True, False, {"legal": legal}

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which options there are."""
        found: npt.NDArray[np.bool_] = self._options[0] >= 0
        return found

    def _begin(self) -> None:
        while True:
            problem = next(self._problems)
            folded = fold(problem)
            self._graph, self._cuts = ClassGraph.of(problem, folded), Cuts(problem, folded)
            self._reference = min(self._cuts.best(order).value for order in topological_orders(folded))
            self._made = OrdersMade(self._graph, 1)
            self._forced()
            if isfinite(self._reference) and not self._made.finished:
                break
        self._left = self._episodes

    def _forced(self) -> None:
        """Go on by all that leaves no choice."""
        while not self._made.finished:
            self._options = options_of(self._made)
            if self._options[0, 1] >= 0:
                return
            self._made.take(self._options[:, 0])

    def _seen(self) -> Floats:
        (numbers,) = seen(self._made, self._options)
        found: Floats = numbers
        return found
