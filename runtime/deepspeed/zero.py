"""Plans of one stage: replicas under ZeRO 0 to 3."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import distributed as dist
from torch import nn

from placer.runtime.deepspeed.config import deepspeed
from placer.runtime.deepspeed.run import DeepSpeedRun, engine_of, loss_scale
from placer.runtime.stages.microbatch import BatchSplit, Microbatch
from placer.runtime.stages.stage import StageModule


class ZeroRun(DeepSpeedRun):
    """One stage, held by DeepSpeed as its ZeRO stage says."""

    def __init__(self, batch_split: BatchSplit, stage: StageModule, loss: str) -> None:
        plan = batch_split.plan
        self._stage, self._loss, self._scale = stage, loss, loss_scale(plan)
        self._sharded = plan.stages[0].sharding == "parameters"
        if self._sharded:
            _gathered_by_blocks(stage)
        super().__init__(batch_split, engine_of(plan, stage, stage))

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """All parameters that a block reads, by the model's own names, whole, on the CPU of every rank."""
        found = {}
        for name, parameter in self._stage.own_parameters().items():
            with self._whole(parameter):
                found[name] = parameter.detach().cpu().clone()
        return found

    def _train(self, microbatches: tuple[Microbatch, ...]) -> float:
        losses = []
        for microbatch in microbatches:
            loss = self._loss_of(microbatch)
            self._engine.backward(loss * self._scale)
            self._engine.step()
            losses.append(loss.detach())
        return _sum(losses)

    def _evaluate(self, microbatches: tuple[Microbatch, ...]) -> float:
        return _sum([self._loss_of(microbatch) for microbatch in microbatches])

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


def _sum(losses: list[torch.Tensor]) -> float:
    """The sum over microbatches and ranks."""
    total = sum((loss.cpu().double() for loss in losses), torch.zeros((), dtype=torch.float64))
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    return float(total)


def _gathered_by_blocks(stage: StageModule) -> None:
    """Parameters lie in containers nobody calls: those of a block are gathered by it, what several read by the stage.

    Not by DeepSpeed's leaf modules: it sums their gradients in a full backward hook, which torch calls before there
    are any where no input of a block has a gradient (the first one).
    """
    for module in (stage, *stage.blocks):
        for parameter in module.own.parameters():
            deepspeed().zero.register_external_parameter(module, parameter)
