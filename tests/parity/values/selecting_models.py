"""Models whose masks select what they sum, average, or take the loss of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH = 11, 8


class Tokens(nn.Module):
    """Tokens, some of which count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))


class Masked(Tokens):
    """The loss of the tokens that are masked, whose masks are made twice."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        return functional.cross_entropy(self.head(self.embed(x))[labels > 3], labels[labels > 3])


class Headed(Tokens):
    """A head for the masked ones alone."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        mask = labels > 3
        return functional.cross_entropy(self.head(self.inner(self.norm(self.embed(x)[mask]))), labels[mask])


class Placed(Tokens):
    """What the masked ones become is put back, at their places."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        hidden, places = self.embed(x), torch.where(labels > 0)
        out = torch.zeros_like(hidden)
        out[places] = self.norm(hidden[places])
        mean: Tensor = (out * hidden).mean() + hidden[places].norm(dim=-1).sum() / places[0].numel()
        return mean


class Positive(Tokens):
    """The mean of those losses that are large: how many, the run says."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        each = functional.cross_entropy(self.head(self.embed(x)).view(-1, WORDS), labels.view(-1), reduction="none")
        large: Tensor = each[each > 2.4].mean()
        return large


class Contrasted(Tokens):
    """Every row against every other, but itself: rows times rows numbers one after the other."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        rows = functional.normalize(self.inner(self.embed(x).mean(1)) + self.embed(labels).mean(1), dim=1)
        alike = rows @ rows.t()
        number: Tensor = alike[alike < 1 - 1e-9].exp().mean().log()
        return number


class Detected(Tokens):
    """Classes of all places by `one_hot`, and a distance of those alone that hold something."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """A number."""
        hidden, held = self.embed(x), labels > 3
        wanted = functional.one_hot(labels, WORDS).to(hidden.dtype) * held[..., None]
        classes = functional.binary_cross_entropy_with_logits(self.head(hidden), wanted, reduction="sum")
        apart = functional.smooth_l1_loss(self.norm(hidden)[held], self.inner(hidden)[held], reduction="sum")
        return (classes + apart) / held.sum().clamp(min=1)
