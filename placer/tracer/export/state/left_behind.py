"""What a module holds beside its parts and tensors, to see whether its forward left something behind for others.

Seen are its attributes and the names that its forward reads of its file: plain values by themselves, others by
identity, and what containers and plain objects among them hold, `DEPTH` levels down. A list that all layers append to
is one such place.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Hashable, Mapping

import torch
from torch import nn

DEPTH = 4
_OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_LEAVES = (nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)


def held(module: nn.Module) -> dict[str, Hashable]:
    """What a module holds now; the same again where nothing was left behind between."""
    own = {name: id(value) if name in _OF_MODULES else _seen(value, DEPTH) for name, value in vars(module).items()}
    return {**own, **{f"{name} of its file": _seen(value, DEPTH) for name, value in _read_of_file(module).items()}}


def _read_of_file(module: nn.Module) -> dict[str, object]:
    """What the module's forward reads of its file, of things that can be added to."""
    forward = getattr(type(module), "forward", None)
    if not isinstance(forward, types.FunctionType):
        return {}
    found = {name: forward.__globals__[name] for name in forward.__code__.co_names if name in forward.__globals__}
    return {name: value for name, value in found.items() if not isinstance(value, _LEAVES)}


def _seen(value: object, depth: int) -> Hashable:
    if isinstance(value, _PLAIN):
        return type(value), value
    if depth and not isinstance(value, _LEAVES):
        if isinstance(value, Mapping):
            return id(value), tuple([(id(key), _seen(one, depth - 1)) for key, one in value.items()])
        if isinstance(value, list | tuple | set | frozenset | deque):
            return id(value), tuple([_seen(one, depth - 1) for one in value])
        if hasattr(value, "__dict__"):
            return id(value), tuple([(name, _seen(one, depth - 1)) for name, one in vars(value).items()])
    return id(value)
