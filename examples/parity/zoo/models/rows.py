"""Family 1: rows that mix before the loss, by statistics of the batch, by order, by slices."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Net(nn.Module):
    """Two products with a tanh after each, and a head: what the models of this file stand on."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))

    def mixed(self, h: Tensor) -> Tensor:
        """What a model does with the features of the batch."""
        return h

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.mixed(self.features(x))), y)


class CentredRows(Net):
    """Features less their mean over the batch."""

    def mixed(self, h: Tensor) -> Tensor:
        return h - h.mean(0)


class MaxOverRows(Net):
    """Features beside the largest of the batch."""

    def mixed(self, h: Tensor) -> Tensor:
        return h / h.abs().max(dim=0).values.clamp(min=0.1)


class UnitColumns(Net):
    """Each feature has norm one over the batch."""

    def mixed(self, h: Tensor) -> Tensor:
        return f.normalize(h, dim=0)


class CumulativeRows(Net):
    """Each row is the sum of those up to it."""

    def mixed(self, h: Tensor) -> Tensor:
        return torch.cumsum(h, dim=0)


class SortedColumns(Net):
    """Each feature sorted over the batch."""

    def mixed(self, h: Tensor) -> Tensor:
        return h + h.sort(dim=0).values


class RolledRows(Net):
    """Each row beside the one before it, the first beside the last."""

    def mixed(self, h: Tensor) -> Tensor:
        return h + 0.5 * torch.roll(h, 1, 0)


class RolledFlat(Net):
    """torch.roll without a dim: over rows and features at once."""

    def mixed(self, h: Tensor) -> Tensor:
        return h + 0.5 * h.roll(3)


class FlippedRows(Net):
    """Each row beside its mirror in the batch."""

    def mixed(self, h: Tensor) -> Tensor:
        return h + h.flip(0)


class RankedRows(Net):
    """Rows in the order of their norms."""

    def mixed(self, h: Tensor) -> Tensor:
        return h[h.norm(dim=1).argsort()]


class Whitened(Net):
    """Features through the batch's own second moments."""

    def mixed(self, h: Tensor) -> Tensor:
        return h @ (h.T @ h) / len(h)


class DividedByRows(Net):
    """A scale by the number of rows in the middle of the model."""

    def mixed(self, h: Tensor) -> Tensor:
        return h / h.shape[0]


class RootOfRows(Net):
    """The number of rows as `size`, under a root, by a user who knows about noise."""

    def mixed(self, h: Tensor) -> Tensor:
        return h * h.size(0) ** 0.5


class FirstRowQuery(Net):
    """The first row is a query to all."""

    def mixed(self, h: Tensor) -> Tensor:
        return h * h[0]


class LastRowShift(Net):
    """All rows less the last."""

    def mixed(self, h: Tensor) -> Tensor:
        return h - h[-1]


class HandNormed(Net):
    """Batch norm by hand."""

    def mixed(self, h: Tensor) -> Tensor:
        return (h - h.mean(dim=0, keepdim=True)) / (h.var(dim=0, unbiased=False, keepdim=True) + 1e-5).sqrt()


class StandardOfBatch(Net):
    """Minibatch discrimination: the mean standard deviation of the batch as one more feature."""

    def mixed(self, h: Tensor) -> Tensor:
        spread = h.std(dim=0).mean().expand(h.shape[0], 1)
        return h + spread


class ThreeRowAverage(Net):
    """A moving average over rows by pooling the transpose."""

    def mixed(self, h: Tensor) -> Tensor:
        return f.avg_pool1d(h.t().unsqueeze(0), 3, stride=1, padding=1).squeeze(0).t()


class ConvolvedRows(Net):
    """Rows taken for time: a convolution over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.over_rows = nn.Conv1d(16, 16, 3, padding=1)

    def mixed(self, h: Tensor) -> Tensor:
        return self.over_rows(h.t()[None])[0].t()


class AttentionOfRows(Net):
    """A set model: every row looks at every other."""

    def mixed(self, h: Tensor) -> Tensor:
        return h + (h @ h.t() / 4).softmax(-1) @ h


class UnbatchedAttention(Net):
    """nn.MultiheadAttention given (rows, features): it takes rows for a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2)

    def mixed(self, h: Tensor) -> Tensor:
        out, _ = self.attend(h, h, h)
        return h + out


class FlatReshape(Net):
    """reshape(-1) and a shift by one: rows and features in one line."""

    def mixed(self, h: Tensor) -> Tensor:
        flat = h.reshape(-1)
        return torch.cat((flat[1:], flat[:1])).view_as(h)


class WrongView(Net):
    """view(16, -1).t(), by one who meant a transpose."""

    def mixed(self, h: Tensor) -> Tensor:
        return h.reshape(16, -1).t()


class PairsOfRows(Net):
    """Neighbouring rows in pairs: half of the rows, twice the features, and back."""

    def mixed(self, h: Tensor) -> Tensor:
        pairs = h.view(h.shape[0] // 2, 2, 16)
        return (pairs + pairs.flip(1)).reshape(-1, 16)


class UnfoldedRows(Net):
    """Windows of two rows."""

    def mixed(self, h: Tensor) -> Tensor:
        windows = h.unfold(0, 2, 1).mean(-1)
        return torch.cat((windows, h[-1:]))


class EvenAndOdd(Net):
    """Even rows teach odd ones."""

    def mixed(self, h: Tensor) -> Tensor:
        return torch.stack((h[::2] + h[1::2], h[::2] - h[1::2]), dim=1).flatten(0, 1)


class ShuffledKeys(Net):
    """A fixed permutation of the batch by index_select."""

    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor([3, 1, 4, 0, 5, 2, 7, 6]))

    def mixed(self, h: Tensor) -> Tensor:
        return 0.7 * h + 0.3 * h.index_select(0, self.order)


class GivenPermutation(Net):
    """Mixup: the permutation and the share come with the batch, labels are mixed too."""

    def forward(self, x: Tensor, y: Tensor, order: Tensor) -> Tensor:  # type: ignore[override]
        share = 0.3
        logits = self.head(self.features((1 - share) * x + share * x[order]))
        return (1 - share) * f.cross_entropy(logits, y) + share * f.cross_entropy(logits, y[order])


class GramStyle(nn.Module):
    """Style loss by the Gram matrix of features over batch and pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.out = nn.Conv2d(6, 3, 1)

    def forward(self, image: Tensor, style: Tensor) -> Tensor:
        made = self.out(torch.relu(self.conv(image)))
        a = made.transpose(0, 1).flatten(1)
        b = style.transpose(0, 1).flatten(1)
        return f.mse_loss(a @ a.t() / a.shape[1], b @ b.t() / b.shape[1])


class TimeFirst(nn.Module):
    """A GRU that was not told batch_first: it runs along the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out, _ = self.gru(x)
        return f.cross_entropy(self.head(out.mean(1)), y)


_PLAIN = (
    CentredRows, MaxOverRows, UnitColumns, CumulativeRows, SortedColumns, RolledRows, RolledFlat, FlippedRows,
    RankedRows, Whitened, DividedByRows, RootOfRows, FirstRowQuery, LastRowShift, HandNormed, StandardOfBatch,
    ThreeRowAverage, ConvolvedRows, AttentionOfRows, UnbatchedAttention, FlatReshape, WrongView, PairsOfRows,
    UnfoldedRows, EvenAndOdd, ShuffledKeys,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 12; y: int6 8") for build in _PLAIN),
    entry(GivenPermutation, "x: normal 8 12; y: int6 8; order: int8 8"),
    entry(GramStyle, "image: normal 8 3 6 6; style: normal 8 3 6 6"),
    entry(TimeFirst, "x: normal 8 5 6; y: int5 8"),
)
