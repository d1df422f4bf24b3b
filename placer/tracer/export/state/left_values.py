"""What a run leaves in a model where there was none before: tensors, in attributes, in dicts, or in lists, tuples and
objects.

A run for an export is undone, so that the next one finds none of it: what a later step finds is put there, of zeros.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from placer.tracer.export.state.model_values import DEEPEST, Values

#: What has attributes and is no plain object.
NOT_PLAIN = (nn.Module, torch.Tensor, FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)


@dataclass(slots=True)
class LeftValues:
    """By the place in the model: tensors where before a run there was none, and what else has such tensors in it (these
    on meta). filled: places whose lists, dicts or objects are the ones that stood there before. stands: whether it is
    there now (`standing`)."""

    places: dict[str, object] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)
    stands: bool = False

    def __bool__(self) -> bool:
        return bool(self.places)

    def add(self, before: Values, after: Values) -> None:
        """Note a run."""
        new = {name: tensor for name, tensor in after.tensors.items() if name not in before.tensors}
        self.places |= {name: _like(tensor, "meta") for name, tensor in new.items() if _is_place(name)}
        for name, value in after.holders.items():
            if any(one.startswith((f"{name}[", f"{name}.")) for one in new):
                self.places[name] = _like(value, "meta")
                self.filled |= {name} if before.holders.get(name) is value else set()

    def missing(self, model: nn.Module) -> frozenset[str]:
        """The modules that runs left tensors in and that do not have them, as before the first step."""
        modules = dict(model.named_modules())
        split = [name.rpartition(".") for name in self.places if not self.stands]
        return frozenset(
            path
            for path, _, attribute in split
            if path in modules and not isinstance(vars(modules[path]).get(attribute), torch.Tensor)
        )

    @contextlib.contextmanager
    def standing(self, model: nn.Module, device: str | torch.device) -> Iterator[bool]:
        """In the body the model's places hold what is like that which runs left; whether there is any."""
        modules = dict(model.named_modules())
        undoing: list[Callable[[], object]] = []
        try:
            for name, value in self.places.items():
                path, _, attribute = name.rpartition(".")
                own: dict[str, Any] = dict[str, Any]() if path not in modules else modules[path].__dict__
                if path not in modules or isinstance(own.get(attribute), torch.Tensor):
                    continue
                held, made = own.get(attribute), _like(value, device)
                if made is held:
                    continue
                if name in self.filled and type(held) is type(made) and _is_open(held):
                    _fill(held, made, undoing)
                else:
                    undoing.append(_back(own, attribute))
                    own[attribute] = made
            self.stands = True
            yield bool(undoing)
        finally:
            self.stands = False
            for undo in reversed(undoing):
                undo()


def _is_place(name: str) -> bool:
    """Whether it is the name of a place itself, not of what is inside one."""
    return "[" not in name


def _back(own: dict[str, Any], attribute: str) -> Callable[[], object]:
    """What puts back the attribute that is there, or that none is."""
    return partial(own.__setitem__, attribute, own[attribute]) if attribute in own else partial(own.pop, attribute)


def _is_open(value: object) -> bool:
    """Whether what is in it can be changed."""
    return isinstance(value, list | deque | dict) or (hasattr(value, "__dict__") and not isinstance(value, NOT_PLAIN))


def _fill(held: Any, like: Any, undoing: list[Callable[[], object]]) -> None:
    """Let `held` hold what another of its kind holds: what else has a part of it sees that in it."""
    inside, other = (one if isinstance(one, list | deque | dict) else vars(one) for one in (held, like))
    undoing.append(partial(_refill, inside, copy.copy(inside)))
    theirs, mine = _inside(other), _inside(inside)
    for key, one in theirs.items():
        own = mine.get(key)
        if type(own) is type(one) and own is not one and _is_open(own):
            _fill(own, one, undoing)
            theirs[key] = own
    _refill(inside, theirs if isinstance(inside, dict) else list(theirs.values()))


def _refill(inside: Any, again: Any) -> None:
    """Let a list or dict hold these."""
    inside.clear()
    inside.update(again) if isinstance(inside, dict) else inside.extend(again)


def _like(value: object, device: str | torch.device, depth: int = 0) -> object:
    """The same with zeros: tensors of these sizes, in lists, tuples, dicts, sets and plain objects like these."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(tuple(value.shape), dtype=value.dtype, device=device)
    if depth > DEEPEST or isinstance(value, NOT_PLAIN):
        return value
    inside = _inside(value)
    made = {key: _like(one, device, depth + 1) for key, one in inside.items()}
    if all(made[key] is one for key, one in inside.items()):
        return value
    if isinstance(value, tuple):
        kind: Any = type(value)
        return kind(*made.values()) if hasattr(value, "_fields") else kind(made.values())
    if isinstance(value, set):
        return set(made.values())
    again = copy.copy(value)
    if isinstance(again, list | deque):
        _refill(again, list(made.values()))
    else:
        (again if isinstance(again, dict) else vars(again)).update(made)
    return again


def _inside(value: object) -> dict[Any, object]:
    """What is in a list, tuple, set, dict or object."""
    if isinstance(value, list | tuple | deque | set):
        return dict(enumerate(value))
    return dict(value if isinstance(value, dict) else getattr(value, "__dict__", {}))
