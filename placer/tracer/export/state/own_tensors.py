"""A model's own tensors, found again where its code reaches them past their names: in a list, a dict, an object.

`self.penalised = [self.head.weight]`: an export reads what is in such a list as a tensor that is no part of the model,
of which it knows the memory, and neither that it learns nor its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from placer.errors import UncapturableError
from placer.tracer.export.state.copies import closure_values
from placer.tracer.export.state.shared_memory import memory_of

# How deep what a module holds is looked into, and of how many things a list is.
_DEEPEST, _MOST = 5, 10_000


class OwnTensors:
    """Parameters and buffers by the model's own names, shared ones once.

    given: those of the model that it was copied from, which functions that were not copied may hold.
    """

    def __init__(self, by_name: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]):
        self.by_name = by_name
        self._given = list(given.values())  # kept, so that their ids stay their own
        self._names = {id(tensor): name for name, tensor in by_name.items()}
        self._memories = {memory_of(tensor): name for each in (given, by_name) for name, tensor in each.items()}
        self._others = set[int]()

    def noting(self) -> TorchFunctionMode:
        """While it lasts, tensors that functions are given in the memory of these and that are none of them are noted:
        an export tells neither from the other."""
        known = {*self._names, *map(id, self._given)}
        return _Noting(known, self._memories.keys(), self._others)

    def name(self, held: object, read: torch.Tensor) -> str | None:
        """The name of the tensor that an export reads as `read`, and finds in the place `held`; None of what is no
        parameter or buffer. Raises UncapturableError for another one that lies in the memory of one that learns."""
        name = self._names.get(id(held)) or self._names.get(id(read))
        if name is not None:
            return name
        memory = memory_of(read)
        name = self._memories.get(memory)
        if name is None or (memory not in self._others and _form(read) == _form(self.by_name[name])):
            return name
        if self.by_name[name].requires_grad:
            raise UncapturableError(
                f"forward reads a tensor made of {name} before the first step, which is in the same memory and would "
                f"not follow it on other devices; make it of {name} in forward ({name}.detach()), or clone() it"
            )
        return None


class _Noting(TorchFunctionMode):
    def __init__(self, known: set[int], memories: Set[int], found: set[int]) -> None:
        super().__init__()
        self._known, self._memories, self._found = known, memories, found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for one in _pytree.tree_leaves((args, kwargs or {})):
            if type(one) in (torch.Tensor, nn.Parameter) and id(one) not in self._known:
                with contextlib.suppress(NotImplementedError):  # what torch.func maps has no memory of its own
                    self._found.update({memory_of(one)} & self._memories)
        return func(*args, **(kwargs or {}))


def beside(model: nn.Module) -> dict[int, torch.Tensor]:
    """Tensors that modules keep in the memory of parameters and buffers and that are none, by identity."""
    own = [*model.parameters(), *model.buffers()]
    known, memories = {id(tensor) for tensor in own}, {memory_of(tensor) for tensor in own}
    held = (tensor for module in model.modules() for tensor in _held(module))
    return {id(one): one for one in held if id(one) not in known and memory_of(one) in memories}


def _held(module: nn.Module) -> Iterator[torch.Tensor]:
    """What it has as attributes, or in lists, objects and functions there."""
    own = (value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules"))
    waiting, seen = [(value, 0) for value in own], set[int]()
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif depth < _DEEPEST and id(value) not in seen and not isinstance(value, nn.Module | type | ModuleType):
            seen.add(id(value))
            waiting += [(one, depth + 1) for one in _inside(value)]


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, FunctionType):
        return closure_values(value)
    if isinstance(value, dict | list | tuple):
        # Not by its length: a tuple of a class of its own may refuse that (e3nn's Irrep).
        inside = list(islice(value.values() if isinstance(value, dict) else iter(value), _MOST + 1))
        return () if len(inside) > _MOST else inside
    return getattr(value, "__dict__", {}).values()


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.layout is not torch.strided:
        return tensor.dtype, tensor.shape
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
