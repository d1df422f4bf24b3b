"""Models that draw random numbers: of every row, of none, in place, through distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

Draw = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# What becomes of x (rows x 8) and a weight of 8.
DRAWS: dict[str, Draw] = {
    "noise of rows": lambda x, w: x + 0.1 * torch.randn_like(x),
    "a number for the batch": lambda x, w: x * torch.rand(()),
    "noise of the batch": lambda x, w: x + torch.randn(()),
    "noise on a weight": lambda x, w: x * (w + torch.randn_like(w) * w),
    "steps of diffusion": lambda x, w: x * (1 + torch.randint(0, 10, (x.shape[0],))[:, None] / 10),
    "a latent": lambda x, w: torch.distributions.Normal(x, 1 + w * w).rsample(),
    "paths that drop": lambda x, w: x * x.new_empty((x.shape[0], 1)).bernoulli_(0.8),
    "gates": lambda x, w: x * torch.bernoulli(torch.sigmoid(x)),
    "gumbel": lambda x, w: nn.functional.gumbel_softmax(x) * w,
    "uniform": lambda x, w: x + torch.empty_like(x).uniform_(-2, 3),
    "spread": lambda x, w: x + torch.normal(torch.zeros_like(x), 0.5),
    "drawn from classes": lambda x, w: x + torch.multinomial(torch.softmax(x, -1), 1),
}


class Drawing(nn.Module):
    """Two linear layers with a draw between them."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))
        self.draw = draw

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        found = self.last(self.draw(self.first(x), self.weight))
        return torch.nn.functional.mse_loss(found, y)


def _build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return Drawing(DRAWS[name])


def factory(name: str) -> str:
    """The reference of the model of a draw."""
    return f"examples.parity.drawing:{name.replace(' ', '_')}"


for _name in DRAWS:
    globals()[_name.replace(" ", "_")] = partial(_build, _name)
