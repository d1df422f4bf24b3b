"""Losses as local sum over the global count, so that microbatches and replicas add up exactly.

    loss of some rows = (sum over their counted elements) / (counted elements of the whole global batch)

Rows without a single counted element give exactly zero loss and zero gradients. A mean that leaves no element out is
that of the rows times their share of the batch. Where a model divides by a sum over the batch that needs no weights
(masks, counts), that sum is taken before the step (`batch_total`).
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.nn import functional

from placer.runtime.stages.pass_context import PassContext

Value = TypeVar("Value", torch.Tensor, float)


def cross_entropy(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    smoothing: float,
    index: int,
    mode: PassContext,
) -> torch.Tensor:
    """The share of these rows in the mean cross entropy of the global batch; `index` is its place in `mode.counts`."""
    total = functional.cross_entropy(
        scores, target, weight, ignore_index=ignore_index, label_smoothing=smoothing, reduction="sum"
    )
    return over_count(total, index, mode)


def nll(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    index: int,
    mode: PassContext,
) -> torch.Tensor:
    """The share of these rows in the mean negative log likelihood of the global batch."""
    total = functional.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction="sum")
    return over_count(total, index, mode)


def over_count(total: torch.Tensor, index: int, mode: PassContext) -> torch.Tensor:
    """A sum of losses over what counts in the global batch, in the type of the sum."""
    count = mode.counts[index]
    if isinstance(count, torch.Tensor):
        count = count.to(total.dtype)
        return total / torch.where(count == 0, 1.0, count) + torch.where(count == 0, float("nan"), 0.0)
    # A batch in which nothing counts has no mean, and no gradients: so says torch.
    return total / count if count else total + float("nan")


def counted(target: torch.Tensor, ignore_index: int, weight: torch.Tensor | None = None) -> float:
    """What torch's mean divides by: labels that count, by their weights where given; class probabilities count all."""
    if target.is_floating_point():
        return target.numel() / target.shape[1]
    labels = target[target != ignore_index]
    return float(labels.numel()) if weight is None else float(weight[labels].sum())


def times_share(value: Value, *, mode: PassContext) -> Value:
    """What these rows count of a mean over them, or of what is the same for all rows: their share of the batch."""
    return value * (mode.rows / mode.global_rows)


def batch_total(index: int, *, mode: PassContext) -> torch.Tensor:
    """A sum over the whole batch that was taken before the step."""
    return mode.totals[index]
