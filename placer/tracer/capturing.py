"""capture(model) -> Graph: export on meta tensors, at two row counts, repeated layers once; then measure and divide.

model --export at 3 and 5 rows--> two plain graphs --lift--> one graph for any rows
      --play on meta at rows and rows + 1--> facts --partition, assemble--> Graph
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass

import torch
from torch import fx, nn

from placer.errors import CaptureError
from placer.graph import Graph
from placer.tracer.assembly import assembled
from placer.tracer.batches import Batch, BatchLike, normalised, with_integer_labels
from placer.tracer.cleaning import Plain, clean, own_state
from placer.tracer.exporting import LossFunction, Training, ValueDependentError, export
from placer.tracer.fitting import hints, input_names
from placer.tracer.folding import Repeat, UnfoldableError, folded, grown, repeats
from placer.tracer.lifting import ROWS, lifted
from placer.tracer.measuring import Samples, sampled
from placer.tracer.models import resolve
from placer.tracer.partition import Partition, partition
from placer.tracer.playing import Played, played


def capture(
    model: object,
    *,
    batch: BatchLike = None,
    loss_fn: LossFunction | None = None,
    devices: int = 1,
    fold: bool = True,
) -> Graph:
    """The Graph of one training step's forward and loss, made without weights and without a GPU.

    model: a module, "package.module:factory", a Hugging Face config or config.json. batch: tensors or shapes by name,
    or text such as "8x128"; None takes what the model implies, one row for each of `devices`, and notes that.
    loss_fn(output, batch) gives the loss where the model has none. fold: export repeated layers once; the Graph is the
    same without. Raises CaptureError with the model's source line.
    """
    built = on_meta(resolve(model).build("meta"))
    example = normalised(built, batch, devices=devices, own_loss=loss_fn is not None)
    return _captured(built, example, loss_fn, fold).graph


def _captured(model: nn.Module, example: Batch, loss_fn: LossFunction | None, fold: bool) -> Captured:
    """Captured; where that fails, again with what may be the labels of classes taken for integers."""
    try:
        return captured(model, example, loss_fn, fold=fold)
    except ValueDependentError:
        raise
    except CaptureError as error:
        classes = with_integer_labels(example, input_names(model))
        if classes is not None:
            with contextlib.suppress(CaptureError):
                return captured(model, classes, loss_fn, fold=fold)
        shapes = {entry.name: entry.shape for entry in example.entries}
        guessed = tuple(entry.name for entry in example.entries if entry.guessed and entry.dtype.is_floating_point)
        raise CaptureError(f"{error}{hints(shapes, guessed)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A Graph together with the plain fx graph it was made from and its division into blocks."""

    graph: Graph
    plain: Plain
    parts: Partition


def captured(
    model: nn.Module,
    example: Batch,
    loss_fn: LossFunction | None,
    device: str | torch.device = "meta",
    fold: bool = True,
) -> Captured:
    """Capture `model`, which lies on `device`; without `fold` every layer is exported by itself."""
    plain = _exported(model, example, loss_fn, device, fold)
    samples = _samples(plain, example)
    parts = partition(plain, model, samples.first)
    graph = assembled(type(model).__name__, plain, parts, samples, example.assumptions)
    return Captured(graph=graph, plain=plain, parts=parts)


def _exported(
    model: nn.Module, example: Batch, loss_fn: LossFunction | None, device: str | torch.device, fold: bool
) -> Plain:
    found = repeats(model) if fold else ()
    if found:
        with contextlib.suppress(UnfoldableError, CaptureError, LookupError):
            return grown(_lifted(model, example, loss_fn, device, found), found, own_state(model))
    return _lifted(model, example, loss_fn, device, ())


def _lifted(
    model: nn.Module,
    example: Batch,
    loss_fn: LossFunction | None,
    device: str | torch.device,
    found: tuple[Repeat, ...],
) -> Plain:
    wrapper = Training(model, loss_fn)
    names = {id(tensor): name for name, tensor in own_state(model).items()}
    with folded(model, found):
        first, second = (clean(export(wrapper, example.tensors(rows, device)), names) for rows in ROWS)
    return lifted(first, second, tuple(entry.name for entry in example.entries if entry.batched))


def _samples(plain: Plain, example: Batch) -> Samples:
    first, second = (_played(plain, example, rows) for rows in (example.rows, example.rows + 1))
    return sampled(plain.graph, example.rows, first, second)


def _played(plain: Plain, example: Batch, rows: int) -> dict[fx.Node, Played]:
    return played(plain, example.tensors(rows, "meta"))


def on_meta(model: nn.Module) -> nn.Module:
    """The model on meta tensors; weights are neither copied nor touched. What cannot be copied is used as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.device.type == "meta" for tensor in tensors):
        return model
    memo: dict[int, object] = {id(tensor): _empty(tensor) for module in model.modules() for tensor in _tensors(module)}
    with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
        return copy.deepcopy(model, memo)
    return model


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    own = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
    return [tensor for tensor in own if isinstance(tensor, torch.Tensor)]


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(torch.empty_like(tensor, device="meta"), requires_grad=tensor.requires_grad)
    return torch.empty_like(tensor, device="meta")
