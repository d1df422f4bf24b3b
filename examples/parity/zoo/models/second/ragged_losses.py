"""Family 9: means over the tokens that count."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry


class Tokens(nn.Module):
    """Logits for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 20)

    def logits(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens))))

    def each(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return f.cross_entropy(self.logits(tokens).transpose(1, 2), labels, reduction="none")


class ClampedCount(Tokens):
    """sum / mask.sum().clamp(min=20): each piece is below, the whole is above."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return (self.each(tokens, labels) * mask).sum() / mask.sum().clamp(min=20)


class EpsilonCount(Tokens):
    """sum / (mask.sum() + 1)."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return (self.each(tokens, labels) * mask).sum() / (mask.sum() + 1.0)


class SharedCount(Tokens):
    """One count for two terms, of which one has another mask; the count's max with 1 in python."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        count = torch.maximum(mask.sum(), torch.ones((), dtype=torch.long))
        each = self.each(tokens, labels)
        hard = (each > 3.0) & mask
        return each.masked_fill(~mask, 0).sum() / count + 0.1 * (each * hard).sum() / count


class ItemCount(Tokens):
    """sum / max(1, mask.sum().item())."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return (self.each(tokens, labels) * mask).sum() / max(1, mask.sum().item())


class NanMean(Tokens):
    """Masked with NaN, then nanmean."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, self.each(tokens, labels), float("nan")).nanmean()


class SelectedMean(Tokens):
    """masked_select, then mean."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return self.each(tokens, labels).masked_select(mask).mean()


class ChunkedEntropy(Tokens):
    """Tokens in one line, in chunks, each a sum, divided by the labels that count."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        labels = labels.masked_fill(~mask, -100).flatten()
        h = torch.tanh(self.body(self.embed(tokens))).flatten(0, 1)
        total: Tensor | float = 0.0
        chunks, parts = h.split(12), labels.split(12)  # type: ignore[no-untyped-call]  # torch does not type it
        for some, wanted in zip(chunks, parts, strict=True):
            total = total + f.cross_entropy(self.head(some), wanted, ignore_index=-100, reduction="sum")
        return total / (labels != -100).sum()


class ZLoss(Tokens):
    """PaLM's z loss beside the cross entropy, both over counted tokens."""

    def forward(self, tokens: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        logits = self.logits(tokens)
        count = mask.sum()
        z = torch.logsumexp(logits, -1).pow(2)
        return (f.cross_entropy(logits[mask], labels[mask]) * count + 1e-2 * (z * mask).sum()) / count


class AdaptiveSoftmax(nn.Module):
    """nn.AdaptiveLogSoftmaxWithLoss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.soft = nn.AdaptiveLogSoftmaxWithLoss(16, 20, cutoffs=[5, 12])

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.soft(torch.tanh(self.body(self.embed(tokens))).flatten(0, 1), labels.flatten()).loss


_OVER_TOKENS = (ClampedCount, EpsilonCount, SharedCount, ItemCount, NanMean, SelectedMean, ChunkedEntropy, ZLoss)
ENTRIES = (
    *(entry(build, "tokens: int20 8 6; labels: int20 8 6; mask: bool 8 6") for build in _OVER_TOKENS),
    entry(AdaptiveSoftmax, "tokens: int20 8 6; labels: int20 8 6"),
)
