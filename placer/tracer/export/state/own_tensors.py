"""A model's own tensors, found again where its code reaches them past their names: in a list, a dict, an object.

`self.penalised = [self.head.weight]`: an export reads what is in such a list as a tensor that is no part of the model,
of which it knows the memory, and neither that it learns nor its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.tracer.export.state.shared_memory import memory_of


class OwnTensors:
    """Parameters and buffers by the model's own names, shared ones once.

    given: those of the model that it was copied from, which functions that were not copied may hold. beside: other
    tensors that the model keeps in the memory of these.
    """

    def __init__(
        self, by_name: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], beside: Mapping[int, torch.Tensor]
    ):
        self.by_name = by_name
        self._beside = {memory_of(tensor) for tensor in beside.values()}
        self._names = {id(tensor): name for name, tensor in by_name.items()}
        self._memories = {memory_of(tensor): name for each in (given, by_name) for name, tensor in each.items()}

    def name(self, held: object, read: torch.Tensor) -> str | None:
        """The name of the tensor that an export reads as `read`, and finds in the place `held`; None of what is no
        parameter or buffer. Raises UncapturableError for another one that lies in the memory of one that learns."""
        name = self._names.get(id(held)) or self._names.get(id(read))
        if name is not None:
            return name
        memory = memory_of(read)
        name = self._memories.get(memory)
        if name is None or (memory not in self._beside and _form(read) == _form(self.by_name[name])):
            return name
        if self.by_name[name].requires_grad:
            raise UncapturableError(
                f"forward reads a tensor made of {name} before the first step, which is in the same memory and would "
                f"not follow it on other devices; make it of {name} in forward ({name}.detach()), or clone() it"
            )
        return None


def beside(model: nn.Module) -> dict[int, torch.Tensor]:
    """Tensors that modules keep in the memory of parameters and buffers and that are none, by identity."""
    own = [*model.parameters(), *model.buffers()]
    known, memories = {id(tensor) for tensor in own}, {memory_of(tensor) for tensor in own}
    held = (tensor for module in model.modules() for tensor in _held(module))
    return {id(one): one for one in held if id(one) not in known and memory_of(one) in memories}


def _held(module: nn.Module) -> Iterator[torch.Tensor]:
    """What it has as attributes, or in lists and the like there."""
    for name, value in vars(module).items():
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        if name not in ("_parameters", "_buffers", "_modules"):
            yield from (one for one in inside if isinstance(one, torch.Tensor))


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.layout is not torch.strided:
        return tensor.dtype, tensor.shape
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
