"""The type a model computes in: its tensors and its inputs in the precision of a run.

A model may look at its types (`if h.dtype == torch.float16`), so that its graph is that of one precision.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from placer.errors import UsageError
from placer.io.usercode import said
from placer.plans.settings import Precision
from placer.tracer.export.state import copies
from placer.tracer.inputs.batches import Batch

#: The type that weights and floating inputs have in a run. Under autocast the weights are as they are without it.
RUN_DTYPES: dict[Precision, torch.dtype] = {
    "float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "bfloat16-autocast": torch.float32,
}  # fmt: skip
# The complex type of as many bits a number.
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def cast(model: nn.Module, device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """The model itself, in `dtype` on `device`; complex tensors in the complex type of as many bits, as `to` would cut
    off their imaginary parts. Raises UsageError where there is none."""
    complexes = [name for name, one in _tensors(model) if one.is_complex()]
    if not complexes:
        return _moved(model, device, dtype)
    if dtype not in _COMPLEX:
        raise UsageError(
            f"the model's {complexes[0]} is complex, and torch has no complex type that layers of {dtype} go with; "
            "plan with --precision float32, float64 or bfloat16-autocast"
        )

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        kind = _COMPLEX[dtype] if tensor.is_complex() else dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=device, dtype=kind)

    return model._apply(moved)  # type: ignore[no-any-return,no-untyped-call]


def _moved(model: nn.Module, device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """By its own `to`, or by torch's where its own takes no type (`def to(self, device)`)."""
    try:
        inspect.signature(model.to).bind(device=device, dtype=dtype)
    except TypeError:
        return nn.Module.to(model, device=device, dtype=dtype)
    return model.to(device=device, dtype=dtype)


def in_dtype(model: nn.Module, dtype: torch.dtype, *, copied: bool) -> nn.Module:
    """The model in `dtype`, where it lies, or a copy of it if it is not that already. Raises UsageError where it cannot
    be copied."""
    other = {one.dtype for _, one in _tensors(model) if one.is_floating_point() or one.is_complex()}
    if other <= {dtype, _COMPLEX.get(dtype)}:
        return model
    if copied:
        try:
            model = copies.copied(model)
        except (TypeError, RuntimeError, NotImplementedError) as error:
            raise UsageError(
                f"the model has tensors of another type than {dtype} and cannot be copied ({said(error)}); give it in "
                "that type, as model.to(...) makes it, or as package.module:factory"
            ) from None
    device = next(one.device for _, one in _tensors(model))
    return cast(model, device, dtype)


def batch_in(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with its floating inputs in `dtype`."""
    entries = tuple(replace(one, dtype=dtype) if one.dtype.is_floating_point else one for one in batch.entries)
    return replace(batch, entries=entries)


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
