"""Plans of several stages on DeepSpeed's pipeline engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Protocol, cast

import torch
from torch import distributed as dist
from torch import nn

from placer.errors import UsageError
from placer.runtime.data_parallel.optimizer import optimizer_factory
from placer.runtime.deepspeed.config import config, deepspeed
from placer.runtime.deepspeed.layer import StageLayer, borders
from placer.runtime.deepspeed.run import DeepSpeedRun, set_rate, trainable
from placer.runtime.stages.batch_split import BatchSplit
from placer.runtime.stages.microbatch import Microbatch
from placer.runtime.stages.stage import StageModule

_Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class _Engine(Protocol):
    """What is used of deepspeed.PipelineEngine."""

    optimizer: torch.optim.Optimizer

    def train_batch(self, data_iter: _Batches) -> torch.Tensor: ...

    def eval_batch(self, data_iter: _Batches) -> torch.Tensor: ...


class PipelineRun(DeepSpeedRun):
    """This rank's stage as a layer of a PipelineModule; DeepSpeed moves what passes between them.

    It gives the mean over replicas and microbatches of losses that were multiplied by their number: the sum.
    """

    def __init__(self, batch_split: BatchSplit, index: int, stage: StageModule, loss: str) -> None:
        super().__init__(batch_split)
        between, last = borders(batch_split.plan), len(batch_split.plan.stages) - 1
        if not all(between):
            raise UsageError("two stages that follow each other exchange nothing; DeepSpeed's pipeline wants a tensor")
        self._layer = StageLayer(
            stage,
            arriving=between[index - 1] if index else (),
            leaving=between[index] if index < last else (),
            scale=self.scale,
            loss=loss,
        )
        self._engine = _engine(batch_split, index, self._layer)

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        set_rate(self._engine.optimizer, rate)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All parameters by the model's own names, whole, on the CPU of every rank."""
        parts: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
        held = {name: p.detach().cpu().clone() for name, p in self._layer.stage.own_parameters().items()}
        dist.all_gather_object(parts, held)
        return {name: tensor for part in reversed(parts) for name, tensor in part.items()}

    def _train(self, found: tuple[Microbatch, ...]) -> float:
        self._layer.begin(found)
        return float(self._engine.train_batch(_nothing()))

    def _evaluate(self, found: tuple[Microbatch, ...]) -> float:
        self._layer.begin(found)
        return float(self._engine.eval_batch(_nothing()))


def _engine(batch_split: BatchSplit, index: int, layer: StageLayer) -> _Engine:
    """The engine; layers of other ranks are placeholders that are never called."""
    plan, library = batch_split.plan, deepspeed()
    stages, replicas = len(plan.stages), plan.stages[0].replicas
    module = library.pipe.PipelineModule(
        layers=[layer if at == index else nn.Identity() for at in range(stages)],
        topology=library.runtime.pipe.topology.PipeDataParallelTopology(num_pp=stages, num_dp=replicas),
        partition_method="uniform",
        dynamic_shape=len(set(plan.microbatches)) > 1,
    )
    made = library.initialize(
        model=module,
        optimizer=optimizer_factory(plan.settings)(trainable(layer)),
        config=config(plan),
        dist_init_required=False,
    )
    return cast(_Engine, made[0])


def _nothing() -> _Batches:
    """The first layer wants an input and the last one labels; ours take both from their microbatches."""
    return repeat((torch.zeros(1), torch.zeros(1)))
