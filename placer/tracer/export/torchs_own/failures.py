"""Why an export failed: what torch says of it, and what people are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from placer.errors import CaptureError, UncapturableError
from placer.io.usercode import said, source_line
from placer.tracer.lookups.checks_in_code import only_checks
from placer.tracer.selections.selected import REFUSED

# How torch 2.13 says that an export would need the value of a tensor.
_NEEDS_VALUES = (
    "data-dependent", "DataDependent", "_local_scalar_dense", "unbacked", "Tensor.item() cannot be called on meta",
    "Cannot copy out of meta tensor", "batch_sizes should always be on CPU", "got ReadArray", "Mixing fake modes",
    "tensor with unallocated storage",
)  # fmt: skip
# What it says of the numbers, and texts, that it makes of tensors.
_OF_NUMBERS = ("SymFloat", "SymInt", "SymBool", "FakeTensor.__format__", ".numpy() is not supported")

#: What follows what was raised, where it is not the model's mistake.
EXPORT_NEEDS = ". Export needs"
# How torch 2.13 says that it is the export, or a tensor without values, that an operation does not know.
_OF_THE_EXPORT = (
    "UncapturedHigherOrderOpError", "UnsupportedOperatorException", "tensor subclasses", "fake impl", "fake kernel",
    "FakeTensorMode", "Meta tensors", "SparseMeta", "'Meta' backend", "meta device", "tracked with proxy",
)  # fmt: skip


class RaisedError(CaptureError):
    """The model or its loss raised an error of its own; with other numbers of rows it may not."""


class MixedDevicesError(CaptureError):
    """Forward reads tensors of two devices: one that is no part of the model stayed where it was made."""


class ValueDependentError(UncapturableError):
    """The export would have needed the value of a tensor."""


def capture_error(
    model: nn.Module, batch: Mapping[str, torch.Tensor], error: Exception, loss_fn: Callable[..., object] | None = None
) -> CaptureError:
    """The error a person sees: where in the model, what was said, what to do."""
    where = source_line(error) or f"a line of torch's own{called_as(loss_fn)}"
    name = type(model).__name__
    if depends_on_values(error):
        return ValueDependentError(
            f"{name} cannot be captured: {where}: {said(error)}{EXPORT_NEEDS} shapes and branches that do not depend "
            f"on the values of tensors: {_instead(where)}, or do it in a submodule of the model, which placer can run "
            "as it is (--opaque NAME); inputs that are the same in every step may be read where the batch says their "
            "values (placer.Constant)"
        )
    if "fake tensor in the exported program" in str(error):
        return UncapturableError(
            f"{name} cannot be captured: forward reads a tensor that an earlier step has kept in a list, an object, a "
            "class, a closure, a file or functools.lru_cache, and an export knows one step alone; make what is the "
            "same in every step anew in each, or once in __init__, as a buffer (register_buffer), and keep what is "
            "not in a buffer that every step writes"
        )
    if "found at least two devices" in str(error):
        return MixedDevicesError(
            f"{name} cannot be captured: {where}: {said(error)}. A tensor there is no part of the model (one of a "
            "file, a list, a closure), and stays where it was made; make it a buffer (register_buffer)"
        )
    if any(sign in said(error) for sign in _OF_THE_EXPORT):
        return RaisedError(
            f"{name} cannot be captured: {where}: {said(error).rstrip('.')}{EXPORT_NEEDS} operations that it knows: "
            "do it in a submodule of the model, which placer can run as it is (--opaque NAME)"
        )
    given = ", ".join(f"{key} {_text(tensor)}" for key, tensor in batch.items())
    return RaisedError(
        f"{name} or its loss raised {said(error)} at {where}, when it was run on {given}; correct that line, or the "
        "names, sizes and types of the batch (NAME=ROWSxSIZE:TYPE with --batch; placer varies the rows)"
    )


def called_as(loss_fn: Callable[..., object] | None) -> str:
    """How a loss is called, said of one that is not written for it (torch's own, a class)."""
    if loss_fn is None:
        return ""
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    return (
        f" (the loss {name} is called as {name}(output, batch), and batch has the tensors by their names: what takes "
        "a target goes into a function of your own, def loss(output, batch): return ...)"
    )


def _instead(where: str) -> str:
    """What to write in place of a line that depends on values."""
    if only_checks(where):
        return "what is asked there does nothing but raise: leave it out of forward, and check where batches are made"
    selecting = "what a mask selects may be summed, averaged, or go through the losses of torch.nn.functional"
    selecting += f"; not known of it: {REFUSED[0]}" if REFUSED else ""
    return (
        "replace the data-dependent branch, .item(), len() or loop there by tensor operations such as torch.where "
        f"({selecting})"
    )


def depends_on_values(error: BaseException) -> bool:
    """Whether an export failed because it would have needed the value of a tensor, which meta tensors do not have."""
    text = f"{type(error).__name__} {error}"
    return any(sign in text for sign in _NEEDS_VALUES)


def reads_numbers(error: BaseException) -> bool:
    """Whether it failed for that, or for what it has in place of a number that is read."""
    text = f"{type(error).__name__} {error}"
    return depends_on_values(error) or any(sign in text for sign in _OF_NUMBERS)


def _text(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
