"""Two tensors of a model that lie in the same memory, which would come apart where each is held by its own name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import nn

from placer.errors import UncapturableError


def require_memory_apart(model: nn.Module) -> None:
    """Raise UncapturableError where two parameters or buffers, of which one may change, share memory."""
    held: dict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor in _tensors(model):
        held[memory_of(tensor)].append((name, tensor))
    pairs = (pair for together in held.values() for pair in combinations(together, 2))
    for (name, tensor), (other, second) in pairs:
        if _changes(tensor) | _changes(second) and _overlap(tensor, second):
            raise UncapturableError(
                f"{name} and {other} lie in the same memory, where a write of one may be one of the other, and each "
                "device would hold them apart; make them one (self.b.weight = self.a.weight, the same nn.Parameter) or "
                "clone() one of them"
            )


def memory_of(tensor: torch.Tensor) -> int:
    """What tells its memory apart from other memory, while it is alive."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers that lie somewhere, each once."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout is torch.strided and not nn.parameter.is_lazy(tensor):
            yield name, tensor


def _changes(tensor: torch.Tensor) -> bool:
    """Whether a step may write it: a parameter that learns, a buffer."""
    return tensor.requires_grad or not isinstance(tensor, nn.Parameter)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = sorted(map(_extent, (one, other)))
    return second[0] < first[1]


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first and the last byte of its memory, and one more."""
    begin = tensor.storage_offset()
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = begin + reach + 1 if tensor.numel() else begin
    return int(begin) * tensor.element_size(), int(end) * tensor.element_size()
