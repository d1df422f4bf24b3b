"""capture(model) -> Graph: export on meta tensors, at two row counts, repeated layers once; then measure and divide.

model --export at 3 and 5 rows--> two plain graphs --lift--> one graph for any rows
      --play on meta at rows and rows + 1--> facts --partition, assemble--> Graph
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from placer.errors import CaptureError
from placer.graph import Graph, Loss
from placer.rules.opaque import OpaqueCost
from placer.tracer.export.cleaning import Plain, clean, own_state
from placer.tracer.export.exporting import LossFunction, Training, ValueDependentError, export
from placer.tracer.export.folding import UnfoldableError, folded
from placer.tracer.export.opaque import calling, unexportable, watched
from placer.tracer.export.repeated_layers import Repeat, repeats
from placer.tracer.export.symbolic_rows import ROWS, lifted
from placer.tracer.export.unfolding import grown
from placer.tracer.graph_builder import assembled
from placer.tracer.inputs.batch_checks import hints, input_names
from placer.tracer.inputs.batches import Batch, BatchLike, normalised, with_integer_labels
from placer.tracer.inputs.models import resolve
from placer.tracer.measure.meta_run import Played, meta_like, played
from placer.tracer.measure.op_facts import Samples, sampled
from placer.tracer.partition.blocks import Partition, partition


def capture(
    model: object,
    *,
    batch: BatchLike = None,
    loss_fn: LossFunction | None = None,
    devices: int = 1,
    fold: bool = True,
    opaque: Sequence[str] | Mapping[str, OpaqueCost] = (),
) -> Graph:
    """The Graph of one training step's forward and loss, made without weights and without a GPU.

    model: a module, "package.module:factory", a Hugging Face config or config.json. batch: tensors or shapes by name,
    or text such as "8x128"; None takes what the model implies, one row for each of `devices`, and notes that.
    loss_fn(output, batch) gives the loss where the model has none. fold: export repeated layers once; the Graph is the
    same without. opaque: submodules that are not looked into, by name, with what they cost where that is known; where
    an export fails inside a submodule for what only running it can tell, that one is taken too, with a note. Raises
    CaptureError with the model's source line.
    """
    built = on_meta(resolve(model).build("meta"))
    example = normalised(built, batch, devices=devices, own_loss=loss_fn is not None)
    parts = dict(opaque) if isinstance(opaque, Mapping) else dict.fromkeys(opaque, OpaqueCost())
    return _with_opaque(built, example, loss_fn, fold, parts).graph


def _with_opaque(
    model: nn.Module, example: Batch, loss_fn: LossFunction | None, fold: bool, parts: dict[str, OpaqueCost]
) -> Captured:
    """Captured; each submodule inside which the export fails for what only running it can tell becomes opaque."""
    notes: list[str] = []
    while True:
        try:
            found = _captured(model, example, loss_fn, fold, parts)
            return replace(found, graph=replace(found.graph, notes=(*found.graph.notes, *notes)))
        except CaptureError as error:
            name = _failing(model, example, loss_fn, parts) if unexportable(error) else ""
            if not name or name in parts or any(part.startswith(f"{name}.") for part in parts):
                raise
            parts[name] = OpaqueCost()
            why = str(error).partition(". Export needs")[0]
            notes.append(f"{name} cannot be exported and is one opaque op, counted by running it once ({why})")


def _failing(model: nn.Module, example: Batch, loss_fn: LossFunction | None, parts: dict[str, OpaqueCost]) -> str:
    """The innermost submodule in which the export fails; "" where it is the model itself, or none."""
    with watched(model) as inside:
        try:
            _lifted(model, example, loss_fn, "meta", (), parts)
        except CaptureError:
            return inside[-1] if inside else ""
    return ""


def _captured(
    model: nn.Module, example: Batch, loss_fn: LossFunction | None, fold: bool, parts: Mapping[str, OpaqueCost]
) -> Captured:
    """Captured; where that fails, again with what may be the labels of classes taken for integers."""
    try:
        return captured(model, example, loss_fn, fold=fold, opaque=parts)
    except ValueDependentError:
        raise
    except CaptureError as error:
        classes = with_integer_labels(example, input_names(model))
        if classes is not None:
            with contextlib.suppress(CaptureError):
                return captured(model, classes, loss_fn, fold=fold, opaque=parts)
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
    opaque: Mapping[str, OpaqueCost] | None = None,
) -> Captured:
    """Capture `model`, which lies on `device`; without `fold` every layer is exported by itself.

    So it is where parts are opaque: each is known by its own name.
    """
    parts = opaque or {}
    plain = _exported(model, example, loss_fn, device, fold and not parts, parts)
    samples = _samples(plain, example)
    pieces = partition(plain, model, samples.first)
    graph = assembled(type(model).__name__, plain, pieces, samples, example.assumptions)
    return Captured(graph=replace(graph, loss=_whole(graph.loss, parts)), plain=plain, parts=pieces)


def _whole(loss: Loss, parts: Mapping[str, OpaqueCost]) -> Loss:
    """The loss; where an opaque part may mix rows of the batch, one that does not add up over them."""
    mixing = [name for name, cost in parts.items() if not cost.rows_apart]
    if not mixing or loss.reduction == "none":
        return loss
    why = f"{mixing[0]} is opaque and may mix rows of the batch; say rows_apart=True of it if it does not"
    return replace(loss, reduction="other", why=why)


def _exported(
    model: nn.Module, example: Batch, loss_fn: LossFunction | None, device: str | torch.device, fold: bool,
    parts: Mapping[str, OpaqueCost],
) -> Plain:  # fmt: skip
    found = repeats(model) if fold else ()
    if found:
        with contextlib.suppress(UnfoldableError, CaptureError, LookupError):
            return grown(_lifted(model, example, loss_fn, device, found, parts), found, own_state(model))
    return _lifted(model, example, loss_fn, device, (), parts)


def _lifted(
    model: nn.Module,
    example: Batch,
    loss_fn: LossFunction | None,
    device: str | torch.device,
    found: tuple[Repeat, ...],
    parts: Mapping[str, OpaqueCost],
) -> Plain:
    wrapper = Training(model, loss_fn)
    names = {id(tensor): name for name, tensor in own_state(model).items()}
    with folded(model, found), calling(model, parts):
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
    memo: dict[int, object] = {
        id(tensor): meta_like(tensor) for module in model.modules() for tensor in _tensors(module)
    }
    with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
        return copy.deepcopy(model, memo)
    return model


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    own = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
    return [tensor for tensor in own if isinstance(tensor, torch.Tensor)]
