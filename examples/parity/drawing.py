"""Models that draw random numbers: of every row, of none, in place, through distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

Draw = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Recurrent(nn.Module):
    """Recurrent layers that drop between each other, the second of them with time in front."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 3, dropout=0.4, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(8, 4, 2, dropout=0.4)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Both over two steps of four; the last states count too."""
        found, (last, _) = self.lstm(x.view(-1, 2, 4))
        found, end = self.gru(found.transpose(0, 1))
        return found.transpose(0, 1).reshape(-1, 8) * w + torch.cat([last.sum(0), end.sum(0)], -1)


class Noisy(nn.Module):
    """Noise that is kept in a buffer, as in NoisyNet."""

    noise: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.zeros(8))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """Times weights that are moved by it."""
        self.noise.normal_()
        return x * (w + 0.1 * self.noise)


class Prompts(nn.Module):
    """Learned prompts that attend, with dropout, to each other: no row has a mask of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.randn(1, 2, 4, 2))

    def keys(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """What they attend to."""
        return self.prompts * w.view(1, 1, 4, 2)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """What was attended to, averaged, with every row."""
        keys = self.keys(x, w)
        met = nn.functional.scaled_dot_product_attention(self.prompts, keys, keys, dropout_p=0.3)
        return x + met.mean(1).flatten(1)


class Attended(Prompts):
    """To the rows: each has a mask of its own, though the queries are those of all."""

    def keys(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """The rows, in two heads that are alike."""
        return (x * w).view(-1, 1, 4, 2).expand(-1, 2, -1, -1)


class Remembered(nn.Module):
    """Rows attend, with dropout, to a memory that all share: queries of two dims."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """What is remembered beside the rows."""
        return x + nn.functional.scaled_dot_product_attention(x * w, self.memory, self.memory, dropout_p=0.3)


def _shares(drawn: torch.Tensor) -> torch.Tensor:
    """Of what is drawn for all rows of the batch."""
    return drawn / drawn.sum()


# What becomes of x (rows x 8) and a weight of 8.
DRAWS: dict[str, Draw | type[nn.Module]] = {
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
    "spread of a size": lambda x, w: x * (1 + torch.normal(0.0, 0.5, size=(x.shape[0], 8), dtype=torch.float64)),
    "laplace": lambda x, w: torch.distributions.Laplace(x, 1 + w * w).rsample(),
    "complex": lambda x, w: x * torch.randn(x.shape, dtype=torch.complex128).imag + torch.rand_like(x * 1j).abs() * w,
    "waits": lambda x, w: x + torch.distributions.Exponential(x.exp()).rsample(),
    "channels that drop": lambda x, w: nn.functional.dropout1d(x.view(-1, 4, 2), 0.4).flatten(1) * w,
    "between recurrent layers": Recurrent,
    "kept noise": Noisy,
    "prompts that attend to prompts": Prompts,
    "prompts that attend to rows": Attended,
    "rows that attend to a memory": Remembered,
    "shares that are drawn": lambda x, w: x * w * _shares(torch.rand((x.shape[0], 1))),
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


class DrawnLabels(Drawing):
    """Two losses, one over the labels that a mask, drawn for every row, leaves, as language models are trained."""

    def __init__(self) -> None:
        super().__init__(lambda x, w: x * w)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        found = self.last(self.draw(self.first(x), self.weight))
        wanted = torch.where(torch.rand(x.shape[0]) < 0.6, torch.randint(0, 8, (x.shape[0],)), -100)
        return nn.functional.cross_entropy(found, wanted) + nn.functional.mse_loss(found, y)


DRAWS["labels that are drawn"] = DrawnLabels


def _build(name: str) -> nn.Module:
    torch.manual_seed(0)
    found = DRAWS[name]
    if found is DrawnLabels:
        return DrawnLabels()
    return Drawing(found() if isinstance(found, type) else found)


def factory(name: str) -> str:
    """The reference of the model of a draw."""
    return f"examples.parity.drawing:{name.replace(' ', '_')}"


for _name in DRAWS:
    globals()[_name.replace(" ", "_")] = partial(_build, _name)
