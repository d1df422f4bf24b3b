"""Plans of one stage: replicas under ZeRO 0 to 3."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

import torch
from torch import nn

from placer.runtime.data_parallel.optimizer import optimizer_factory
from placer.runtime.deepspeed.config import config, deepspeed
from placer.runtime.deepspeed.run import DeepSpeedRun, set_rate, trainable
from placer.runtime.stages.batch_split import BatchSplit
from placer.runtime.stages.microbatch import Microbatch
from placer.runtime.stages.recompute import Tensors
from placer.runtime.stages.stage import BlockModule, StageModule


class _Engine(Protocol):
    """What is used of deepspeed.DeepSpeedEngine."""

    optimizer: torch.optim.Optimizer

    def __call__(self, *inputs: object) -> Tensors: ...

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self) -> None: ...


class ZeroRun(DeepSpeedRun):
    """One stage, held by DeepSpeed as its ZeRO stage says."""

    def __init__(self, batch_split: BatchSplit, stage: StageModule, loss: str) -> None:
        super().__init__(batch_split)
        self._stage, self._loss = stage, loss
        self._sharded = batch_split.plan.stages[0].sharding == "parameters"
        if self._sharded:
            _gathered_by_blocks(stage)
        made = deepspeed().initialize(
            model=stage,
            optimizer=optimizer_factory(batch_split.plan.settings)(trainable(stage)),
            config=config(batch_split.plan),
            dist_init_required=False,
        )
        self._engine = cast(_Engine, made[0])

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        set_rate(self._engine.optimizer, rate)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All parameters by the model's own names, whole, on the CPU of every rank."""
        found = {}
        for name, parameter in self._stage.own_parameters().items():
            with self._whole(parameter):
                found[name] = parameter.detach().cpu().clone()
        return found

    def _train(self, found: tuple[Microbatch, ...]) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for microbatch in found:
            loss = self._loss_of(microbatch)
            self._engine.backward(loss * self.scale)
            self._engine.step()
            total += loss.detach().cpu()
        return self._sum(total)

    def _evaluate(self, found: tuple[Microbatch, ...]) -> float:
        return self._sum(
            sum(
                (self._loss_of(microbatch).cpu().double() for microbatch in found), torch.zeros((), dtype=torch.float64)
            )
        )

    def _loss_of(self, microbatch: Microbatch) -> torch.Tensor:
        """The share of a microbatch in the loss; of a ghost's nothing counts, but all ranks gather and reduce."""
        code = self._stage.code
        outputs = self._engine(microbatch.mode, *(microbatch.inputs[name] for name in code.inputs))
        loss = outputs[code.produces.index(self._loss)]
        return loss * 0.0 if microbatch.ghost else loss

    def _whole(self, parameter: nn.Parameter) -> AbstractContextManager[None]:
        if not self._sharded:
            return nullcontext()
        return cast("AbstractContextManager[None]", deepspeed().zero.GatheredParameters(parameter))


def _gathered_by_blocks(stage: StageModule) -> None:
    """Parameters lie in containers nobody calls: a block is gathered as one, what several read by the stage."""
    deepspeed().utils.set_z3_leaf_modules(stage, [BlockModule])
    for parameter in stage.own.parameters():
        deepspeed().zero.register_external_parameter(stage, parameter)
