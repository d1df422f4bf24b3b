"""A model's own tensors, found again where its code reaches them past their names: in a list, a dict, an object.

`self.penalised = [self.head.weight]`: an export reads what is in such a list as a tensor that is no part of the model,
of which it knows the memory, and neither that it learns nor its name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from placer.errors import UncapturableError
from placer.tracer.export.state.shared_memory import memory_of


class OwnTensors:
    """Parameters and buffers by the model's own names, shared ones once.

    given: those of the model that it was copied from, which functions that were not copied may hold.
    """

    def __init__(self, by_name: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]):
        self.by_name = by_name
        self._names = {id(tensor): name for name, tensor in by_name.items()}
        self._memories = {memory_of(tensor): name for each in (given, by_name) for name, tensor in each.items()}

    def name(self, held: object, read: torch.Tensor) -> str | None:
        """The name of the tensor that an export reads as `read`, and finds in the place `held`; None of what is no
        parameter or buffer. Raises UncapturableError for one that lies in the memory of one and is another."""
        name = self._names.get(id(held)) or self._names.get(id(read))
        if name is not None:
            return name
        name = self._memories.get(memory_of(read))
        if name is not None and _form(read) != _form(self.by_name[name]):
            raise UncapturableError(
                f"forward reads a tensor made of {name} before the first step, which is in the same memory and would "
                f"not follow it on other devices; make it of {name} in forward"
            )
        return name


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.layout is not torch.strided:
        return tensor.dtype, tensor.shape
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
