"""Family 9: rows that meet others by where they stand (shifted, ranked, written over), and losses of a vector of rows.

A reader of the rules wrote these: each was taken for a model whose rows keep apart, or its ops for such as can be cut.
"""
# ruff: noqa: D102

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.parity.zoo.entry import entry


class Classifier(nn.Module):
    """A class of each row; `met` is what its features meet."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(width, 4)

    def met(self, h: Tensor) -> Tensor:
        """The features that are classified."""
        raise NotImplementedError

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.last(self.met(torch.tanh(self.first(x)))), y)


class RowBefore(Classifier):
    """Each row beside the one before it, by a padding that keeps the size."""

    def __init__(self) -> None:
        super().__init__(32)

    def met(self, h: Tensor) -> Tensor:
        return torch.cat([h, functional.pad(h, (0, 0, 1, -1))], 1)


class HalfOrder(Classifier):
    """Neighbours in the order of a score share a row."""

    def met(self, h: Tensor) -> Tensor:
        order, inverse = _order(h)
        return h[order // 2][inverse]


class OrderTwice(Classifier):
    """Rows by the order of the order."""

    def met(self, h: Tensor) -> Tensor:
        order, _ = _order(h)
        return h + h[order][order]


class RanksAsValues(Classifier):
    """Where a row stands in the order is a feature of it."""

    def met(self, h: Tensor) -> Tensor:
        _, inverse = _order(h)
        return h * (1 + inverse.to(h.dtype).unsqueeze(1))


class MeanWritten(Classifier):
    """One feature of every row is the mean of all."""

    def met(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[torch.arange(h.shape[0]), 0] = h.mean()
        return h


class MeanAdded(Classifier):
    """The mean row is added to every row, by an index of all rows."""

    def met(self, h: Tensor) -> Tensor:
        return h.index_put((torch.arange(h.shape[0]),), h.mean(0), accumulate=True)


class TokenBefore(nn.Module):
    """RWKV's time shift (arXiv:2305.13048, section 3.1)."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.first, self.mixed, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = h + torch.relu(self.mixed(h * 0.3 + self.shift(h) * 0.7))
        return functional.cross_entropy(self.last(h).flatten(0, 1), y.flatten())


class Scores(nn.Module):
    """A number for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

    def scored(self, x: Tensor) -> Tensor:
        """It."""
        return self.last(torch.tanh(self.first(x))).squeeze(-1)


class RankMatched(Scores):
    """Optimal transport of one dimension: the target of the same rank."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scores = self.scored(x)
        order = scores.detach().sort()[1]
        ranks = torch.empty_like(order)
        ranks[order] = torch.arange(order.shape[0], device=order.device)
        return (scores - t.sort()[0][ranks]).pow(2).mean()


class RankMatchedBack(Scores):
    """The other way round: the sorted scores where the target's order is."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        order = t.sort()[1]
        inverse = torch.zeros_like(order).index_put((order,), torch.arange(order.shape[0], device=order.device))
        return (self.scored(x).sort()[0][inverse] - t).pow(2).mean()


class VectorTriplet(Scores):
    """Of scores without features a triplet's distance is that of all rows."""

    def forward(self, x: Tensor, p: Tensor, n: Tensor) -> Tensor:
        return functional.triplet_margin_loss(self.scored(x), self.scored(p), self.scored(n))


class VectorCosine(Scores):
    """The cosine of two vectors of rows."""

    def forward(self, x: Tensor, p: Tensor) -> Tensor:
        return functional.cosine_embedding_loss(self.scored(x), self.scored(p), torch.ones(()))


class OddScale(nn.Module):
    """Resampled by 2.1, which makes twice as many numbers and takes others than by 2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 6, 3, padding=1), nn.Conv1d(6, 4, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.interpolate(torch.tanh(self.first(x)), scale_factor=2.1, mode="nearest")
        return functional.mse_loss(self.last(h), y)


def _order(h: Tensor) -> tuple[Tensor, Tensor]:
    """The order of the rows by their first feature, and its inverse."""
    order = h[:, 0].detach().sort()[1]
    return order, torch.zeros_like(order).index_put((order,), torch.arange(h.shape[0]))


_ROWS = "x: normal 8 16; y: int4 8"
ENTRIES = (
    *(entry(build, _ROWS) for build in (RowBefore, HalfOrder, OrderTwice, RanksAsValues, MeanWritten, MeanAdded)),
    entry(TokenBefore, "x: normal 8 6 8; y: int5 8 6", axes=("sequence",)),
    entry(RankMatched, "x: normal 8 16; t: normal 8"),
    entry(RankMatchedBack, "x: normal 8 16; t: normal 8"),
    entry(VectorTriplet, "x: normal 8 16; p: normal 8 16; n: normal 8 16"),
    entry(VectorCosine, "x: normal 8 16; p: normal 8 16"),
    entry(OddScale, "x: normal 8 3 8; y: normal 8 4 16", axes=("sequence",)),
)
