"""A model on meta tensors, as it is captured: what it computes, without its weights."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from placer.tracer.export.state.copies import copied
from placer.tracer.export.state.own_tensors import beside
from placer.tracer.export.state.shared_memory import memory_of
from placer.tracer.measure.meta_run import meta_like


def on_meta(model: nn.Module) -> nn.Module:
    """The model on meta tensors; weights are neither copied nor touched. What cannot be copied is used as it is."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.device.type == "meta" for tensor in tensors):
        return model
    memo: dict[int, object] = {
        id(tensor): meta_like(tensor) for module in model.modules() for tensor in _tensors(module)
    }
    twins = {memory_of(tensor): memo[id(tensor)] for tensor in tensors}
    for number, tensor in beside(model).items():
        with contextlib.suppress(RuntimeError):  # it lies elsewhere in that memory, or is of another type
            memo[number] = _within(twins[memory_of(tensor)], tensor)
    with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
        return copied(model, memo)
    return model


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    own = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
    return [tensor for tensor in own if isinstance(tensor, torch.Tensor)]


def _within(whole: object, part: torch.Tensor) -> torch.Tensor:
    """What stands for `part` in the memory of what stands for its whole."""
    if not isinstance(whole, torch.Tensor) or whole.dtype != part.dtype:
        raise RuntimeError("of another type")
    return torch.as_strided(whole.detach(), part.shape, part.stride(), part.storage_offset())
