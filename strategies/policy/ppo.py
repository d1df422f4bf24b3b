"""MaskablePPO (sb3-contrib) over the scorer: what trains it. Imported by the training command only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from placer.strategies.policy.network import Scorer, Shown

# States of one rollout of all environments, and of one step of gradient descent.
ROLLOUT, BATCH = 2048, 512
LEARNING_RATES = (1e-3, 1e-4)


class OptionPolicy(MaskableActorCriticPolicy):
    """Its scores are those of the scorer of `shown`, with nothing behind them."""

    def __init__(self, *given: Any, shown: Shown, **named: Any) -> None:
        self._shown = shown
        super().__init__(*given, **named)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = Scorer(self._shown)  # type: ignore[assignment]

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    @property
    def scorer(self) -> Scorer:
        """What is trained and kept."""
        scorer = self.mlp_extractor
        assert isinstance(scorer, Scorer)
        return scorer


class Progress(BaseCallback):
    """Tells after each rollout: steps, finished episodes, their rewards and whether their plans are legal."""

    def __init__(self, tell: Callable[[int, list[float], list[bool]], None]) -> None:
        super().__init__()
        self._tell = tell
        self._rewards: list[float] = []
        self._legal: list[bool] = []

    def _on_step(self) -> bool:
        ended = zip(self.locals["rewards"], self.locals["infos"], self.locals["dones"], strict=True)
        for reward, told, done in ended:
            if done:
                self._rewards.append(float(reward))
                self._legal.append(bool(told["legal"]))
        return True

    def _on_rollout_end(self) -> None:
        self._tell(self.num_timesteps, self._rewards, self._legal)
        self._rewards, self._legal = [], []


def learner(
    environments: Sequence[Callable[[], gymnasium.Env[Any, Any]]], shown: Shown, *, seed: int, tensorboard: Path | None
) -> MaskablePPO:
    """PPO over these environments. Rewards come once, at the end, so that nothing is discounted."""
    first, last = LEARNING_RATES
    return MaskablePPO(
        OptionPolicy, DummyVecEnv(list(environments)),
        n_steps=ROLLOUT // len(environments), batch_size=BATCH, n_epochs=4, gamma=1.0, gae_lambda=0.95, ent_coef=0.01,
        learning_rate=lambda left: last + (first - last) * left, seed=seed, device="cpu",
        policy_kwargs={"ortho_init": False, "shown": shown},
        tensorboard_log=None if tensorboard is None else str(tensorboard),
    )  # fmt: skip
