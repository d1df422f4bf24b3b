"""DeepSpeedRun: a plan on DeepSpeed's engine, as the training loop uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import distributed as dist
from torch import nn

from placer.plans.plan import Plan
from placer.runtime.stages.batch_split import BatchSplit
from placer.runtime.stages.microbatch import Batch, Microbatch


class DeepSpeedRun(ABC):
    """One rank of a plan on DeepSpeed's engine. `steps` done so far key the dropout masks."""

    def __init__(self, batch_split: BatchSplit) -> None:
        self._batch_split = batch_split
        self.steps = 0

    @property
    def plan(self) -> Plan:
        """The plan it runs."""
        return self._batch_split.plan

    @property
    def scale(self) -> float:
        """What a loss is multiplied by, so that DeepSpeed's mean over replicas and microbatches is a sum."""
        return float(self.plan.stages[0].replicas * len(self.plan.microbatches))

    def step(self, batch: Batch) -> float:
        """Train one step on the global batch (the same on every rank); its loss. Raises UsageError for a wrong
        batch."""
        loss = self._train(self._batch_split.microbatches(batch, step=self.steps, training=True))
        self.steps += 1
        return loss

    def evaluate(self, batch: Batch) -> float:
        """The loss of the global batch without gradients: dropout off, batch norm with its running statistics."""
        with torch.no_grad():
            return self._evaluate(self._batch_split.microbatches(batch, step=self.steps, training=False))

    @abstractmethod
    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""

    @abstractmethod
    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All parameters by the model's own names, whole, on the CPU of every rank."""

    @abstractmethod
    def _train(self, found: tuple[Microbatch, ...]) -> float: ...

    @abstractmethod
    def _evaluate(self, found: tuple[Microbatch, ...]) -> float: ...

    def _sum(self, value: torch.Tensor) -> float:
        """The sum over all ranks."""
        total = value.detach().to(torch.float64).reshape(())
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
        return float(total)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give all groups the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters an optimizer is for."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
