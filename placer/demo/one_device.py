"""What one device computes, in plain PyTorch: no graph, no plan, no placer executor in the way.

Loss of a step = sum over microbatches of (mean loss of the microbatch x its share of the rows): here every row counts
the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from placer.plans.plan import Plan
from placer.runtime.data import Batch, Data


def reference_losses(plan: Plan, model: nn.Module, data: Data, steps: int) -> Iterator[float]:
    """The loss of each step of training `model` on `data` with the plan's microbatches and optimizer settings."""
    optimizer = _optimizer(plan, model)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(_backward(model, part, share) for part, share in _microbatches(plan, data.batch(step)))
        if plan.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), plan.settings.clip_norm)
        optimizer.step()
        yield loss


def _optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    settings = plan.settings
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )


def _microbatches(plan: Plan, batch: Batch) -> Iterator[tuple[Batch, float]]:
    first = 0
    for rows in plan.microbatches:
        yield {name: value[first : first + rows] for name, value in batch.items()}, rows / plan.rows
        first += rows


def _backward(model: nn.Module, part: Batch, share: float) -> float:
    loss: torch.Tensor = model(**part).loss * share
    torch.autograd.backward(loss)
    return loss.item()
