"""capture(model) -> Graph: export on meta tensors, at two numbers of rows, repeated layers once; then measure and divide.

model --export at 3 and 5 rows--> two plain graphs --lift--> one graph for any rows
      --play on meta at rows and rows + 1--> facts --partition, assemble--> Graph
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass

import torch
from torch import fx, nn

from placer.graph import Graph
from placer.tracer.assembly import assembled
from placer.tracer.batches import Batch, BatchLike, normalised
from placer.tracer.cleaning import Plain, clean
from placer.tracer.exporting import LossFunction, Training, export
from placer.tracer.lifting import ROWS, lifted
from placer.tracer.measuring import Samples
from placer.tracer.models import resolve
from placer.tracer.partition import Partition, partition
from placer.tracer.playing import Played, played


def capture(model: object, *, batch: BatchLike = None, loss_fn: LossFunction | None = None, devices: int = 1) -> Graph:
    """The Graph of one training step's forward and loss, made without weights and without a GPU.

    model: a module, "package.module:factory", a Hugging Face config or config.json. batch: tensors or shapes by name, or
    text such as "8x128"; None takes what the model implies, one row per device of `devices`, and notes the assumption.
    loss_fn(output, batch) gives the loss where the model has none. Raises CaptureError with the model's source line.
    """
    built = on_meta(resolve(model).build("meta"))
    example = normalised(built, batch, devices=devices, own_loss=loss_fn is not None)
    return captured(built, example, loss_fn).graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A Graph together with the plain fx graph it was made from and its division into blocks."""

    graph: Graph
    plain: Plain
    parts: Partition


def captured(
    model: nn.Module, example: Batch, loss_fn: LossFunction | None, device: str | torch.device = "meta"
) -> Captured:
    """Capture `model`, which lies on `device`."""
    plain = _exported(model, example, loss_fn, device)
    samples = _samples(plain, example)
    parts = partition(plain, model, samples.first)
    graph = assembled(type(model).__name__, plain, parts, samples, example.assumptions)
    return Captured(graph=graph, plain=plain, parts=parts)


def _exported(model: nn.Module, example: Batch, loss_fn: LossFunction | None, device: str | torch.device) -> Plain:
    wrapper = Training(model, loss_fn)
    plains = [clean(export(wrapper, example.tensors(rows, device))) for rows in ROWS]
    batched = tuple(entry.name for entry in example.entries if entry.batched)
    return lifted(plains[0], plains[1], batched)


def _samples(plain: Plain, example: Batch) -> Samples:
    first, second = (_played(plain, example, rows) for rows in (example.rows, example.rows + 1))
    return Samples(rows=example.rows, first=first, second=second)


def _played(plain: Plain, example: Batch, rows: int) -> dict[fx.Node, Played]:
    return played(plain, example.tensors(rows, "meta"))


def on_meta(model: nn.Module) -> nn.Module:
    """The model on meta tensors; weights are neither copied nor touched. What cannot be copied is used as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.device.type == "meta" for tensor in tensors):
        return model
    memo = {id(tensor): _empty(tensor) for module in model.modules() for tensor in _tensors(module)}
    with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
        return copy.deepcopy(model, memo)  # type: ignore[arg-type]
    return model


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    own = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
    return [tensor for tensor in own if isinstance(tensor, torch.Tensor)]


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=tensor.requires_grad)
    return torch.empty_like(tensor, device="meta")
