"""Family 9: rows picked, sorted and summed by index."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Layers


class LastToken(nn.Module):
    """h[arange(B), lengths - 1]: the last token's state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        h, _ = self.rnn(self.embed(tokens))
        return f.cross_entropy(self.head(h[torch.arange(h.shape[0], device=h.device), lengths - 1]), y)


class FlatGather(nn.Module):
    """BERT's masked positions: offsets of rows are added, tokens picked from one long line."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        h = torch.tanh(self.body(self.embed(tokens)))
        b, t, d = h.shape
        offsets = torch.arange(b, device=h.device).unsqueeze(1) * t
        picked = h.reshape(b * t, d).index_select(0, (positions + offsets).flatten())
        return f.cross_entropy(self.head(picked), labels.flatten())


class ProtoNet(Layers):
    """An episode: the first half of the rows are supports in order of class, the others queries."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.features(x)
        support, query = h.unflatten(0, (2, 4))  # type: ignore[no-untyped-call]  # torch does not type it
        return f.cross_entropy(-(torch.cdist(query, support) ** 2), torch.arange(4))


class SegmentMean(Layers):
    """Nodes are rows; a vector says whose: global_mean_pool."""

    def forward(self, x: Tensor, group: Tensor, y: Tensor) -> Tensor:
        h = self.features(x)
        total = h.new_zeros(4, 16).index_add(0, group, h)
        count = h.new_zeros(4).index_add(0, group, h.new_ones(len(h))).clamp(min=1)
        return f.cross_entropy(self.head(total / count.unsqueeze(1)), y[:4])


class SortedPack(nn.Module):
    """Rows sorted by length, packed, put back in order."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        ordered, places = lengths.sort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(x[places], ordered, batch_first=True)
        _, (h, _) = self.rnn(packed)
        return f.cross_entropy(self.head(h[-1][places.argsort()]), y)


ENTRIES = (
    entry(LastToken, "tokens: int20 8 6; lengths: int1-6 8; y: int4 8"),
    entry(FlatGather, "tokens: int20 8 6; positions: int6 8 2; labels: int20 8 2"),
    entry(ProtoNet, "x: normal 8 8"),
    entry(SegmentMean, "x: normal 8 8; group: int4 8; y: int4 8"),
    entry(SortedPack, "x: normal 8 6 5; lengths: int1-6 8; y: int4 8"),
)
