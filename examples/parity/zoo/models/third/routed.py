"""Family 10: mixtures of experts whose rows are sorted by expert, and models that only look like one.

`Routed` is how the transformers library writes it (integrations/moe.py). A reader of the rules wrote the others to
deceive them: sums over places of the order, other counts, another order.
"""
# ruff: noqa: D102

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations import moe  # noqa: F401 - what defines the product of groups

from examples.parity.zoo.entry import entry


class Sorting(nn.Module):
    """A class of each row or token; `met` is what its features meet."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(width, 4)
        self.experts, self.places = nn.Parameter(torch.randn(4, 16, 16) * 0.3), nn.Parameter(torch.randn(3, 1))

    def met(self, h: Tensor) -> Tensor:
        """The features that are classified."""
        raise NotImplementedError

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.last(self.met(torch.tanh(self.first(x)))).flatten(0, -2), y.flatten())

    def products(self, h: Tensor, order: Tensor, counts: Tensor) -> Tensor:
        """Each row by its expert, of those that follow each other in the order, so many of each."""
        ends = counts.cumsum(0, dtype=torch.int32)
        return torch.ops.transformers.grouped_mm_fallback(h[order], self.experts, ends)[_inverse(order)]


class Routed(Sorting):
    """Rows by their expert."""

    def met(self, h: Tensor) -> Tensor:
        expert = _expert(h)
        order = expert.sort()[1]
        return self.products(h, order, _counts(expert[order]))


class ClampedCounts(Sorting):
    """No expert has more than two rows."""

    def met(self, h: Tensor) -> Tensor:
        expert = _expert(h)
        order = expert.sort()[1]
        return h + self.products(h, order, _counts(expert[order]).clamp(max=2))


class OtherCounts(Sorting):
    """Counts of experts in an order of something else."""

    def met(self, h: Tensor) -> Tensor:
        order = h[:, 5].detach().sort()[1]
        return h + self.products(h, order, _counts(_expert(h)[order]))


class Descending(Sorting):
    """The last expert's rows first."""

    def met(self, h: Tensor) -> Tensor:
        expert = _expert(h)
        order = expert.sort(descending=True)[1]
        return h + self.products(h, order, _counts(expert[order]))


class HalvedEnds(Sorting):
    """Half of where each expert's rows end."""

    def met(self, h: Tensor) -> Tensor:
        expert = _expert(h)
        order = expert.sort()[1]
        ends = (_counts(expert[order]).cumsum(0) // 2).to(torch.int32)
        return h + torch.ops.transformers.grouped_mm_fallback(h[order], self.experts, ends)[_inverse(order)]


class AddedInverse(Sorting):
    """The inverse added to what was there."""

    def met(self, h: Tensor) -> Tensor:
        order = h[:, 0].detach().sort()[1]
        before = torch.full_like(order, -1)
        return h + h[order][before.index_put((order,), torch.arange(order.shape[0]), accumulate=True)]


class FlatBack(Sorting):
    """Sorted rows, flattened, by the inverse of rows."""

    def __init__(self) -> None:
        super().__init__(1)

    def met(self, h: Tensor) -> Tensor:
        order = h[:, 0].detach().sort()[1]
        return h[order].reshape(-1)[_inverse(order)].unsqueeze(1)


class NeighbourSums(Sorting):
    """Sums over three neighbours in the order."""

    def met(self, h: Tensor) -> Tensor:
        flat = h.flatten(0, 1)
        order = flat[:, 0].detach().sort()[1]
        return flat[order].view(h.shape).cumsum(1).view(flat.shape)[_inverse(order)].view(h.shape)


class PlaceInOrder(Sorting):
    """Weights by the place in the order."""

    def met(self, h: Tensor) -> Tensor:
        flat = h.flatten(0, 1)
        order = flat[:, 0].detach().sort()[1]
        return (flat[order].view(h.shape) * self.places).view(flat.shape)[_inverse(order)].view(h.shape)


class BiasedExperts(Sorting):
    """Experts with biases, which rows take by the sorted numbers of their experts (GPT-OSS)."""

    def __init__(self) -> None:
        super().__init__(8)
        self.biases = nn.Parameter(torch.randn(4, 16) * 0.3)

    def met(self, h: Tensor) -> Tensor:
        keys, order = _expert(h).sort()
        ends = _counts(keys).cumsum(0, dtype=torch.int32)
        made = torch.ops.transformers.grouped_mm_fallback(h[order], self.experts, ends) + self.biases[keys]
        return (made[..., ::2] * made[..., 1::2])[_inverse(order)]


class RowsByKey(Sorting):
    """The first rows of the batch, as if they were what belongs to experts."""

    def met(self, h: Tensor) -> Tensor:
        keys, order = _expert(h).sort()
        return (h[order] + h[keys])[_inverse(order)]


class LoadOfExpert(Sorting):
    """How many rows of the batch have the expert of each row."""

    def met(self, h: Tensor) -> Tensor:
        keys, order = _expert(h).sort()
        return (h[order] + _counts(keys)[keys].unsqueeze(1))[_inverse(order)]


class MeanByKey(Sorting):
    """A feature of the batch's mean for each expert."""

    def met(self, h: Tensor) -> Tensor:
        keys, order = _expert(h).sort()
        return (h[order] + h.mean(0)[keys].unsqueeze(1))[_inverse(order)]


def _expert(h: Tensor) -> Tensor:
    return h[:, :4].argmax(-1)


def _counts(expert: Tensor) -> Tensor:
    return torch.histc(expert.float(), bins=4, min=0, max=3)


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.shape[0], device=order.device)
    return inverse


_OF_ROWS = (
    Routed, ClampedCounts, OtherCounts, Descending, HalvedEnds, AddedInverse, FlatBack, BiasedExperts, RowsByKey,
    LoadOfExpert, MeanByKey,
)  # fmt: skip
ENTRIES = (
    *(entry(build, "x: normal 8 16; y: int4 8") for build in _OF_ROWS),
    *(entry(build, "x: normal 8 3 16; y: int4 8 3") for build in (NeighbourSums, PlaceInOrder)),
)
