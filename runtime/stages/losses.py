"""Losses as local sum over the global count, so that microbatches and replicas add up exactly.

    loss of some rows = (sum over their counted elements) / (counted elements of the whole global batch)

Rows without a single counted element give exactly zero loss and zero gradients. A mean that leaves no element out is
the same with count = elements per row x rows of the global batch.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from placer.runtime.stages.pass_context import PassContext


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
        return total / count.to(total.dtype)
    # A batch in which nothing counts has loss 0 here; torch's own mean would be 0/0.
    return total / (count or 1.0)


def counted(target: torch.Tensor, ignore_index: int, weight: torch.Tensor | None = None) -> float:
    """What torch's mean divides by: labels that count, by their weights where given; class probabilities count all."""
    if target.is_floating_point():
        return target.numel() / target.shape[1]
    labels = target[target != ignore_index]
    return float(labels.numel()) if weight is None else float(weight[labels].sum())


def share_of_mean(values: torch.Tensor, mode: PassContext) -> torch.Tensor:
    """The share of these rows in the mean of all elements of the global batch."""
    if values.numel() == 0:
        return values.sum()
    return values.sum() * (mode.rows / (values.numel() * mode.global_rows))
