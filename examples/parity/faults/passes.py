"""Faults of forwards and backwards: messages, schedules, dropout, batch norm, recompute, evaluation, types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from examples.parity.faults.fault import Fault, Plant, method, replaced
from placer.plans.schedule import Action
from placer.program.instructions import Message
from placer.runtime.executor import interpreter
from placer.runtime.executor.executor import Executor
from placer.runtime.executor.interpreter import Interpreter
from placer.runtime.executor.messages import Mailbox
from placer.runtime.stages import dropout, keyed_numbers, rewrite
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.microbatch import Microbatch
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.stage import StageModule
from placer.runtime.weights.rank_weights import RankWeights

Real = Callable[..., Any]
Tensor = torch.Tensor


def of(original: Real, wrong: Real) -> Plant:
    """A function of the runtime, replaced."""
    return lambda: replaced(original, wrong)


def in_class(owner: type, name: str, wrong: Real) -> Plant:
    """A method of the runtime, replaced."""
    return lambda: method(owner, name, wrong)


def _written_over(real: Real, into: dict[object, Tensor], key: object, tensor: Tensor) -> None:
    into[key] = tensor


def _rows_reversed(real: Real, self: Interpreter, step: object, message: Message, *given: object) -> Tensor:
    found: Tensor = real(self, step, message, *given)
    return found.flip(0) if message.kind == "gradient" else found


def _sent_in_bfloat16(real: Real, self: Mailbox, message: Message, tensors: list[Tensor]) -> object:
    return real(self, message, [t.bfloat16().to(t.dtype) if t.is_floating_point() else t for t in tensors])


def _weights_of_another(real: Real, self: RankWeights, stage: StageModule) -> None:
    real(self, stage)
    named = stage.own_parameters()
    with torch.no_grad():
        for name, parameter in named.items():
            other = named.get(name.replace("layers.0.", "layers.1."))
            if "layers.0." in name and other is not None:
                parameter.copy_(other)


def _last_left(real: Real, self: Interpreter, step: Any, action: Action) -> object:
    if action.kind == "W" and action.microbatch == 2:
        return step.passes.pop((action.stage, action.microbatch), None)
    return real(self, step, action)


def _scaled_loss(real: Real, self: Interpreter, *given: object) -> tuple[list[Tensor], list[Tensor]]:
    roots, gradients = real(self, *given)
    return roots, [2.0 * gradient if gradient.dim() == 0 else gradient for gradient in gradients]


def _own_loss(real: Real, self: Interpreter, step: Any, entry: object) -> Tensor:
    own: Tensor = step.loss.clone()
    real(self, step, entry)
    return own


def _autocast(real: Real, self: Interpreter) -> torch.autocast:
    return torch.autocast(self.device.type, torch.bfloat16)


def other_keys(real: Real, self: PassContext) -> PassContext:
    """A second run with keys of its own."""
    again: PassContext = real(self)
    return again if again.keys is None else replace(again, keys=again.keys + 1)


def _again_as_first(real: Real, self: PassContext) -> PassContext:
    return self


def _training(real: Real, self: Executor, batch: Batch, *, training: bool) -> tuple[Microbatch, ...]:
    made: tuple[Microbatch, ...] = self.feeder.microbatches(batch, step=self.steps, training=True)
    return made


def _by_the_batch(real: Real, *given: Any, mode: PassContext, **kwargs: object) -> Tensor:
    return real(*given, mode=mode if mode.training else replace(mode, training=True, updates=False), **kwargs)


def _other_momentum(real: Real, *given: Any, mode: PassContext, **kwargs: object) -> Tensor:
    values = list(given)
    values[6] = 1.0 - values[6]
    return real(*values, mode=mode, **kwargs)


def _never_updating() -> AbstractContextManager[object]:
    return mock.patch.object(PassContext, "updating", property(lambda self: False))


def of_the_next_row(real: Real, seed: int, step: int, first_row: int, *given: object) -> Tensor:
    """The keys of rows one further."""
    return real(seed, step, first_row + 1, *given)


def of_the_first_step(real: Real, seed: int, step: int, *given: object) -> Tensor:
    """The keys of the first step, in every step."""
    return real(seed, 0, *given)


def _of_the_first_op(real: Real, shape: torch.Size, probability: float, op: int, keys: Tensor) -> Tensor:
    return real(shape, probability, 0, keys)


def _half_as_often(real: Real, shape: torch.Size, probability: float, op: int, keys: Tensor) -> Tensor:
    return real(shape, probability / 2, op, keys)


def _unscaled(
    real: Real, values: Tensor, probability: float, op: int, rows: int | None, mode: PassContext, *places: object
) -> Tensor:
    made: Tensor = real(values, probability, op, rows, mode, *places)
    return made * (1.0 - probability) if mode.training and mode.keys is not None else made


NORM, DROPOUT = "batch norm", "dropout"
FAULTS = (
    Fault(name="the gradient of a value with two readers written over", subject="forked, interleaved",
          plant=of(interpreter._add, _written_over)),
    Fault(name="gradients between stages with their rows reversed", subject="pipeline",
          plant=in_class(Interpreter, "_outgoing", _rows_reversed)),
    Fault(name="values between stages rounded to bfloat16", subject="pipeline",
          plant=in_class(Mailbox, "send", _sent_in_bfloat16)),
    Fault(name="a layer begins with the weights of the next", subject="pipeline",
          plant=in_class(RankWeights, "fill", _weights_of_another)),
    Fault(name="the weights' part of the last backward left out", subject="zero-bubble",
          plant=in_class(Interpreter, "_compute", _last_left)),
    Fault(name="the loss scaled by two in backward", subject="pipeline",
          plant=in_class(Interpreter, "_roots", _scaled_loss)),
    Fault(name="the loss of a rank's own rows reported", subject="replicas",
          plant=in_class(Interpreter, "_summed_loss", _own_loss)),
    Fault(name="products in bfloat16 where the plan says float32", subject="float32",
          plant=in_class(Interpreter, "_autocast", _autocast)),
    Fault(name="dropout drawn anew where a block runs again", subject="dropout, run again",
          plant=in_class(PassContext, "again", other_keys)),
    Fault(name="running statistics moved again where a block runs again", subject="batch norm, run again",
          plant=in_class(PassContext, "again", _again_as_first)),
    Fault(name="dropout goes on in evaluation", subject=DROPOUT, plant=in_class(Executor, "_feeds", _training)),
    Fault(name="evaluation by the batch's own statistics", subject=NORM, plant=of(rewrite.batch_norm, _by_the_batch)),
    Fault(name="running statistics are not kept", subject=NORM, plant=_never_updating),
    Fault(name="running statistics move by one minus the momentum", subject=NORM,
          plant=of(rewrite.batch_norm, _other_momentum)),
    Fault(name="dropout by the key of the next row", subject=DROPOUT,
          plant=of(keyed_numbers.row_keys, of_the_next_row)),
    Fault(name="dropout the same in every step", subject=DROPOUT,
          plant=of(keyed_numbers.row_keys, of_the_first_step)),
    Fault(name="dropout the same in every layer", subject=DROPOUT, plant=of(dropout.kept, _of_the_first_op)),
    Fault(name="dropout drops half as often", subject=DROPOUT, plant=of(dropout.kept, _half_as_often)),
    Fault(name="what dropout leaves is not scaled", subject=DROPOUT, plant=of(dropout.dropout, _unscaled)),
)  # fmt: skip
