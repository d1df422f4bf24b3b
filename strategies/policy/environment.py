"""The game for gymnasium: an action is the number of an option, an episode makes one plan, its reward comes at the end.

An environment plays some episodes of a problem, then goes on to its next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from placer.search.problem import Problem
from placer.strategies.policy.features import REACH, SIZE, Features, Numbers, mask
from placer.strategies.policy.game import MOST_OPTIONS, Game, State
from placer.strategies.policy.outcomes import outcome, reference_seconds


class LayoutGame(gymnasium.Env[Numbers, np.int64]):
    """Plays `episodes` of each of `problems`, which never end; those without a decision are passed over."""

    def __init__(self, problems: Iterator[Problem], episodes: int) -> None:
        self.observation_space = spaces.Box(-REACH, REACH, (SIZE,), np.float32)
        self.action_space = spaces.Discrete(MOST_OPTIONS)
        self._problems, self._episodes, self._left = problems, episodes, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """The first state of the next episode; problems come in their own order, whatever the seed."""
        super().reset(seed=seed)
        if self._left == 0:
            self._begin()
        self._left -= 1
        return self._go(self._start), {}

    def step(self, action: np.int64) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        """The state after option `action`; of a finished one the observation is empty."""
        state = self._options[int(action)]
        if not state.finished:
            return self._go(state), 0.0, False, False, {}
        found = outcome(self._features.game.problem.costs, self._features.game.plan(state))
        told = {"legal": found.legal}
        return np.zeros(SIZE, dtype=np.float32), found.reward(self._reference), True, False, told

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which options there are."""
        return mask(len(self._options))

    def _begin(self) -> None:
        start = None
        while start is None or start.finished:
            game = Game(next(self._problems))
            start = game.start
        self._start, self._left = start, self._episodes
        self._features, self._reference = Features(game), reference_seconds(game)

    def _go(self, state: State) -> Numbers:
        self._options = self._features.game.options(state)
        return self._features.observation(state, self._options)
