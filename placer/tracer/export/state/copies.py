"""Copies of a model whose functions mean the copy.

`copy.deepcopy` takes a function as it is: on a copy a hook `lambda module, given, made: model.kept.append(made)` would
go on writing into the model that was copied. Functions of TorchScript hold nothing of a model, and refuse to be copied.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import CellType, FunctionType
from typing import TypeVar

import torch
from torch import nn

_Model = TypeVar("_Model", bound=nn.Module | None)
# As many lists in lists are looked into.
_DEEPEST = 3


def copied(model: _Model, memo: Mapping[int, object] | None = None) -> _Model:
    """A deep copy of the model: what its modules' hooks and own functions hold of the model is the copy's.

    memo: what stands for which object in the copy, by `id`, as `copy.deepcopy` takes it.
    """
    known = dict(memo or {})
    functions = {} if model is None else dict(_of_functions(model))
    cells: defaultdict[int, CellType] = defaultdict(CellType)
    twins = {key: _twin(function, cells) for key, function in functions.items()}
    known.update(twins)
    known.update({} if model is None else _scripts(model))
    made = copy.deepcopy(model, known)
    for key, twin in twins.items():
        _bind(functions[key], twin, known)
    return made


def _of_functions(model: nn.Module) -> Iterator[tuple[int, FunctionType]]:
    """Functions that modules keep, in their hooks too, and those that these hold; of those that hold something."""
    waiting = [held for module in model.modules() for value in vars(module).values() for held in _held(value)]
    seen = set[int]()
    while waiting:
        function = waiting.pop()
        if isinstance(function, FunctionType) and id(function) not in seen:
            seen.add(id(function))
            waiting += closure_values(function)
            if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
                yield id(function), function


def _scripts(model: nn.Module) -> dict[int, object]:
    """The functions of TorchScript that modules keep, which stand for themselves."""
    held = (held for module in model.modules() for value in vars(module).values() for held in _held(value))
    return {id(one): one for one in held if isinstance(one, torch.jit.ScriptFunction)}


def _held(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(iter(value)) if isinstance(value, (list, tuple)) else [value]


def closure_values(function: FunctionType) -> list[object]:
    """What a function holds of where it was made, and its defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _twin(function: FunctionType, cells: Mapping[int, CellType]) -> FunctionType:
    """The same function with cells of its own, which it shares with the twins of those that it shares cells with."""
    closure = None if function.__closure__ is None else tuple([cells[id(cell)] for cell in function.__closure__])
    twin = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    twin.__dict__.update(function.__dict__)
    twin.__qualname__, twin.__module__, twin.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return twin


def _bind(function: FunctionType, twin: FunctionType, known: Mapping[int, object]) -> None:
    """The twin holds what stands in the copy for what the function holds; anything else it shares with it."""
    for cell, own in zip(function.__closure__ or (), twin.__closure__ or (), strict=True):
        if _filled(cell):
            own.cell_contents = _standing(cell.cell_contents, known)
    twin.__defaults__ = function.__defaults__ and tuple(_standing(one, known) for one in function.__defaults__)
    twin.__kwdefaults__ = function.__kwdefaults__ and {
        name: _standing(one, known) for name, one in function.__kwdefaults__.items()
    }


def _standing(value: object, known: Mapping[int, object], depth: int = 0) -> object:
    """What stands in the copy for what a function holds; for a list, tuple or dict with such in it, one of these."""
    if id(value) in known or depth > _DEEPEST or type(value) not in (list, tuple, dict):
        return known.get(id(value), value)
    inside = _held(value)
    made = [_standing(one, known, depth + 1) for one in inside]
    if all(one is other for one, other in zip(inside, made, strict=True)):
        return value
    if isinstance(value, dict):
        return dict(zip(value, made, strict=True))
    return tuple(made) if isinstance(value, tuple) else made
