"""Family 10: models that reckon with the number of rows, and rows that meet columns by broadcasting.

A reader of the rules wrote these: an export at 3 and at 5 rows tells nothing of a quarter of the rows, rounded, nor of
what begins at 7; and a piece of the batch has fewer rows to count.
"""
# ruff: noqa: D102

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.parity.zoo.entry import entry


class Counted(nn.Module):
    """A class of each row; `met` is what its features meet."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, classes)
        self.norm, self.table = nn.BatchNorm1d(16), nn.Parameter(torch.randn(16, 16))

    def met(self, h: Tensor) -> Tensor:
        """The features that are classified."""
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.last(self.met(torch.tanh(self.first(x)))), y)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """What the scores lose."""
        return functional.cross_entropy(scores, y)


class HardestRows(Counted):
    """The quarter of the rows that lose most (online hard example mining)."""

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        each = functional.cross_entropy(scores, y, reduction="none")
        return each.topk(max(1, int(0.25 * y.shape[0])))[0].mean()


class GhostNorm(Counted):
    """Batch norm of pieces of at most seven rows (arXiv:1705.08741)."""

    def met(self, h: Tensor) -> Tensor:
        return torch.cat([self.norm(part) for part in h.chunk(math.ceil(h.shape[0] / 7))])


class Pieces(Counted):
    """Rows seven at a time."""

    def met(self, h: Tensor) -> Tensor:
        return torch.cat([torch.sin(part) for part in h.split(7)])  # type: ignore[no-untyped-call]


class ManyRows(Counted):
    """Something else for more than six rows."""

    def met(self, h: Tensor) -> Tensor:
        return h * 2 if h.shape[0] > 6 else h


class AtMostSeven(Counted):
    """A mean over at most seven."""

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return scores.pow(2).sum() / min(scores.shape[0], 7)


class OneFewer(Counted):
    """The unbiased mean of squares, counted with a tensor."""

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return scores.pow(2).sum() / torch.ones(scores.shape[0] - 1, dtype=scores.dtype).sum()


class TableOfRows(Counted):
    """Scores against one more entry of a table than there are rows."""

    def met(self, h: Tensor) -> Tensor:
        return h + (h @ self.table[: h.shape[0] + 1].T).logsumexp(1, keepdim=True)


class PlaceOfCount(Counted):
    """The entry of a table whose number is that of the rows."""

    def met(self, h: Tensor) -> Tensor:
        return h - self.table[h.shape[0]]


class RolledByCount(Counted):
    """Features rolled by the number of rows."""

    def met(self, h: Tensor) -> Tensor:
        return h * h.roll(h.shape[0], 1)


class Suppressed(Counted):
    """A class that is never told."""

    def __init__(self) -> None:
        super().__init__(512)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, 0] = -math.inf
        return functional.cross_entropy(scores, y * 100 + 3)


class ColumnPoisson(Counted):
    """A column of rates beside a row of counts: every rate meets every count."""

    def __init__(self) -> None:
        super().__init__(1)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return functional.poisson_nll_loss(scores, y.to(scores.dtype))


class FilledByLabels(Counted):
    """Columns that any row's label names are filled in all rows."""

    def met(self, h: Tensor) -> Tensor:
        return h.index_fill(1, h.detach().argmax(1), 0.0)


class SolvedShared(Counted):
    """A matrix of each row, and one right-hand side that all share."""

    def met(self, h: Tensor) -> Tensor:
        matrices = h.view(-1, 4, 4) + 3 * torch.eye(4, dtype=h.dtype)
        return torch.linalg.solve(matrices, self.table[:4, :4]).flatten(1)


class Reciprocal(Counted):
    """A sum times one over the rows, a penalty over the square root of them, negative."""

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        summed = functional.cross_entropy(scores, y, reduction="sum")
        return summed * (1.0 / y.shape[0]) - scores.tanh().sum() / -(y.shape[0] ** 0.5)


class Unbiased(Counted):
    """Features that are bounded by a share of the rows, scores that grow with them; a sum over one row fewer."""

    def met(self, h: Tensor) -> Tensor:
        return h.clamp(max=2.0 / h.shape[0]) * (h.shape[0] / 3.0)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(scores, y, reduction="sum") / (float(y.shape[0]) - 1.0)


class Smoothed(Counted):
    """Labels smoothed by a share of the rows, a norm's epsilon, and a number that is added to the loss."""

    def met(self, h: Tensor) -> Tensor:
        parts = h.view(-1, 4, 4)
        return functional.instance_norm(parts, eps=1.0 / h.shape[0]).flatten(1)

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        n = y.shape[0]
        return functional.cross_entropy(scores, y, label_smoothing=1.0 / n) + 1.0 / n


class Weighed(Counted):
    """Rows weighed by what the batch alone says, over the mean of the weights, and inputs less their mean."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = x.abs().mean(1)
        scores = self.last(torch.tanh(self.first(x - x.mean(0, keepdim=True))))
        each = functional.cross_entropy(scores, y, reduction="none")
        return (each * weight).mean() / weight.mean() + (each * (weight / weight.mean().square())).mean()


class WeighedClasses(Counted):
    """Classes weighed by how many rows of the batch have them: counted labels that wait for another count."""

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(scores, y, functional.one_hot(y, 4).to(scores.dtype).mean(0) + 0.0)


class Waving(Counted):
    """A factor that no law of the rows gives."""

    def met(self, h: Tensor) -> Tensor:
        return h * math.sin(h.shape[0])


_ENTRIES = (
    HardestRows, GhostNorm, Pieces, ManyRows, AtMostSeven, OneFewer, TableOfRows, PlaceOfCount, RolledByCount,
    Suppressed, ColumnPoisson, FilledByLabels, SolvedShared, Reciprocal, Unbiased, Smoothed,
    Weighed, WeighedClasses, Waving,
)  # fmt: skip
ENTRIES = tuple(entry(build, "x: normal 8 16; y: int4 8") for build in _ENTRIES)
