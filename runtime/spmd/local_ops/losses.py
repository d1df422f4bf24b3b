"""Losses of a piece of the batch or of the classes."""

from __future__ import annotations

import torch

from placer.runtime.spmd.collectives import total
from placer.runtime.spmd.local_ops.calls import Given

SUM = 2  # at::Reduction


def mean_share(given: Given) -> torch.Tensor:
    """A mean over the rank's piece, weighted by the piece's share of what is counted."""
    return given.called() * (given.place("part") / given.place("of"))


def mean_loss(given: Given) -> torch.Tensor:
    """The sum of the rank's losses over the count (or weight) of the labels that count on all ranks."""
    scores, target = given.tensor(0), given.tensor(1)
    weight, ignored = given.optional(2, "weight"), _ignored(given)
    each = torch.ones_like(target, dtype=scores.dtype) if weight is None else weight[target.masked_fill(ignored, 0)]
    count = given.axis.all_reduce(each.detach().masked_fill(ignored, 0).sum(), "sum")
    return given.replaced(3, "reduction", SUM).called() / count


def vocabulary_loss(given: Given) -> torch.Tensor:
    """Cross entropy of scores cut on classes: log sum exp(score) - score of the label, each summed over ranks."""
    target, ignored = given.tensor(1), _ignored(given)
    smoothing = given.number(5, "label_smoothing", 0.0)
    normaliser, label, everything = _sums(given, smoothing)
    losses = normaliser - label
    if everything is not None:
        losses = (1 - smoothing) * losses + smoothing * (normaliser - everything / given.place("of"))
    losses = losses.masked_fill(ignored, 0)
    reduction = given.number(3, "reduction", 1)
    if reduction == 0:
        return losses
    return losses.sum() if reduction == SUM else losses.sum() / (target.numel() - ignored.sum())


def _sums(given: Given, smoothing: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Over all classes: log of the sum of exponentials, the label's score, and the sum of scores where smoothed."""
    scores, ids = given.tensor(0), given.tensor(1) - given.place("start")
    largest = given.axis.all_reduce(scores.detach().amax(1), "max")
    mine = (ids >= 0) & (ids < scores.shape[1])
    found = _at_labels(scores, torch.where(mine, ids, 0))
    own = torch.where(mine, found, 0.0)  # what stands for another rank's label may be no number to multiply
    parts = [(scores - largest.unsqueeze(1)).exp_().sum(1), own, *([scores.sum(1)] if smoothing else [])]
    exponentials, label, *everything = total(torch.stack(parts), given.axis).unbind(0)
    return exponentials.log() + largest, label, everything[0] if everything else None


def _at_labels(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What `gather` along the classes gives, whose backward would keep all scores for their shape."""
    count = labels.dim()
    places = [
        torch.arange(size, device=scores.device).reshape([-1 if dim == at else 1 for at in range(count)])
        for dim, size in enumerate(labels.shape)
    ]
    return scores[(places[0], labels, *places[1:])]


def _ignored(given: Given) -> torch.Tensor:
    return given.tensor(1) == int(given.number(4, "ignore_index", -100))
