"""DeepSpeedRun: a plan on DeepSpeed's engine, as the training loop uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import nn

from placer.plans.plan import Plan
from placer.runtime.data_parallel.optimizer import optimizer_factory
from placer.runtime.deepspeed.config import config, deepspeed
from placer.runtime.executor.evaluable import require_evaluable
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.microbatch import BatchSplit, Microbatch
from placer.runtime.stages.recompute import Tensors
from placer.runtime.stages.stage import StageModule

Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]


class _Engine(Protocol):
    """What is used of deepspeed.DeepSpeedEngine, and (`..._batch`) of deepspeed.PipelineEngine."""

    optimizer: torch.optim.Optimizer
    module: nn.Module

    def __call__(self, *inputs: object) -> Tensors: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self) -> None: ...

    def train_batch(self, data_iter: Pairs) -> torch.Tensor: ...

    def eval_batch(self, data_iter: Pairs) -> torch.Tensor: ...


def engine_of(plan: Plan, model: nn.Module, held: nn.Module) -> _Engine:
    """The engine of `model`, which trains the parameters of `held`."""
    parameters = [parameter for parameter in held.parameters() if parameter.requires_grad]
    made = deepspeed().initialize(
        model=model,
        optimizer=optimizer_factory(plan.settings)(parameters),
        config=config(plan),
        dist_init_required=False,
    )
    return cast(_Engine, made[0])


def loss_scale(plan: Plan) -> float:
    """What a loss is multiplied by, so that DeepSpeed's mean over replicas and microbatches is a sum."""
    return float(plan.stages[0].replicas * len(plan.microbatches))


class DeepSpeedRun(ABC):
    """One rank of a plan on DeepSpeed's engine. `steps` done so far key the dropout masks."""

    def __init__(self, batch_split: BatchSplit, engine: _Engine) -> None:
        self._batch_split, self._engine = batch_split, engine
        self.steps = 0
        #: Not asked of DeepSpeed, which saves nothing.
        self.gradient_norm: float | None = None

    def step(self, batch: Batch) -> float:
        """Train one step on the global batch (the same on every rank); its loss. Raises UsageError for a wrong
        batch."""
        loss = self._train(self._batch_split.microbatches(batch, step=self.steps, training=True))
        for part in self._engine.module.modules():
            if isinstance(part, StageModule):
                part.write_buffers()
        self.steps += 1
        return loss

    def evaluate(self, batch: Batch) -> float:
        """The loss of the global batch without gradients: dropout off, batch norm with its running statistics.

        Raises UsageError where the model computes otherwise in evaluation than what is run.
        """
        require_evaluable(self._batch_split.plan)
        with torch.no_grad():
            return self._evaluate(self._batch_split.microbatches(batch, step=self.steps, training=False))

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate

    @abstractmethod
    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All parameters that a block reads, by the model's own names, whole, on the CPU of every rank."""

    @abstractmethod
    def _train(self, microbatches: tuple[Microbatch, ...]) -> float: ...

    @abstractmethod
    def _evaluate(self, microbatches: tuple[Microbatch, ...]) -> float: ...
