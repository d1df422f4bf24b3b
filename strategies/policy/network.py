"""The network: it scores each option by itself, so that it serves any number of options, blocks and devices.

Shapes: B states, O options, H hidden units, K decisions. Games differ in how many numbers they show (`Shown`).

    hidden_BOH = tanh(second(tanh(context(problem, decision)_BH + option(features)_BOH)))
    score_BO   = of the K heads of hidden_BOH the one of the decision
    value_B    = value(tanh(pooled(mean over options of hidden'_BOH, context'_BH))), by weights of its own

Weights are kept as safetensors, which hold numbers and no code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from placer.errors import PlacerError
from placer.strategies.policy.features import OPTION, PROBLEM
from placer.strategies.policy.game import DECISIONS, MOST_OPTIONS

SHIPPED = Path(__file__).parent / "trained" / "policy.safetensors"
# How large first scores are: all options about as likely.
FIRST = 0.01


class Shown(NamedTuple):
    """How many numbers a game shows: of the problem, one for each decision, then of each of `most` options `option`."""

    problem: int
    decisions: int
    option: int
    most: int
    hidden: int

    @property
    def context(self) -> int:
        """Numbers that all options share."""
        return self.problem + self.decisions


#: Of the game that makes plans.
LAYOUT = Shown(problem=PROBLEM, decisions=len(DECISIONS), option=OPTION, most=MOST_OPTIONS, hidden=96)


class Encoder(nn.Module):
    """Hidden units of every option and of their context."""

    def __init__(self, shown: Shown) -> None:
        super().__init__()
        self.context = nn.Linear(shown.context, shown.hidden)
        self.option = nn.Linear(shown.option, shown.hidden)
        self.second = nn.Linear(shown.hidden, shown.hidden)

    def forward(self, context_BC: Tensor, option_BOF: Tensor) -> Tensor:  # noqa: N803 (shapes)
        """hidden_BOH."""
        first_BOH = torch.tanh(self.context(context_BC).unsqueeze(1) + self.option(option_BOF))  # noqa: N806
        return torch.tanh(self.second(first_BOH))


class Scorer(nn.Module):
    """Scores of options, and what a value is made of."""

    def __init__(self, shown: Shown = LAYOUT) -> None:
        super().__init__()
        self.shown = shown
        # What the policy of stable-baselines3 asks.
        self.latent_dim_pi, self.latent_dim_vf = shown.most, shown.hidden
        self.actor, self.critic = Encoder(shown), Encoder(shown)
        self.heads = nn.Linear(shown.hidden, shown.decisions)
        self.pooled = nn.Linear(shown.hidden + shown.context, shown.hidden)
        with torch.no_grad():
            self.heads.weight.mul_(FIRST)
            self.heads.bias.zero_()

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Scores, and what the value is made of."""
        return self.forward_actor(seen), self.forward_critic(seen)

    def forward_actor(self, seen: Tensor) -> Tensor:
        """score_BO; of options that are not there it means nothing."""
        context, option = self._parts(seen)
        every_BOK = self.heads(self.actor(context, option))  # noqa: N806
        return torch.einsum("bok,bk->bo", every_BOK, context[:, self.shown.problem :])

    def forward_critic(self, seen: Tensor) -> Tensor:
        """What the value is made of, (B, H)."""
        context, option = self._parts(seen)
        there_BO1 = (option != 0).any(-1, keepdim=True).to(seen.dtype)  # noqa: N806
        hidden_BOH = self.critic(context, option) * there_BO1  # noqa: N806
        mean_BH = hidden_BOH.sum(1) / there_BO1.sum(1).clamp(min=1)  # noqa: N806
        return torch.tanh(self.pooled(torch.cat((mean_BH, context), dim=1)))

    def _parts(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.shown.context
        return seen[:, :shared], seen[:, shared:].reshape(-1, self.shown.most, self.shown.option)


def fresh_scorer(seed: int, shown: Shown = LAYOUT) -> Scorer:
    """An untrained one; the caller's random numbers go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Scorer(shown)


def save_scorer(scorer: Scorer, path: Path) -> None:
    """Its weights as safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: weight.contiguous() for name, weight in scorer.state_dict().items()}, path)


def load_scorer(path: Path = SHIPPED, shown: Shown = LAYOUT) -> Scorer:
    """The scorer of `save_scorer`. Raises PlacerError for weights of another network or none."""
    scorer = fresh_scorer(0, shown)
    try:
        scorer.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise PlacerError(
            f"the weights {path} cannot be used: {error}; make them anew: python -m placer.strategies.policy.train"
        ) from None
    return scorer


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread: small products are no faster on more, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
