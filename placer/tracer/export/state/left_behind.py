"""What a module holds beside its parts and tensors, to see whether its forward left something behind for others.

Seen are its attributes and what its forward reads of its file: plain values by themselves, others by identity, and what
containers, plain objects, functions and other modules among them hold, `DEPTH` levels down. A list that all layers
append to is one such place, be it an attribute, or behind a callback or a function of the file.
"""

from __future__ import annotations

import logging
import types
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from functools import partial

import torch
from torch import nn

DEPTH = 4
_OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_LEAVES = (torch.Tensor, type, types.ModuleType, logging.Logger)


def held(module: nn.Module) -> Hashable:
    """What a module holds now; the same again where nothing was left behind between."""
    return _seen(module, DEPTH), _seen(getattr(type(module), "forward", None), DEPTH)


def _seen(value: object, depth: int) -> Hashable:
    if isinstance(value, _PLAIN):
        return type(value), value
    if not depth or isinstance(value, _LEAVES):
        return id(value)
    return id(value), tuple([_seen(one, depth - 1) for one in _inside(value)])


def _inside(value: object) -> Iterator[object]:
    """What a value holds."""
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from value
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.FunctionType):
        yield from _behind(value)
    elif hasattr(value, "__dict__"):
        own = vars(value).items()
        yield from (item for name, item in own if not (isinstance(value, nn.Module) and name in _OF_MODULES))


def _behind(function: types.FunctionType) -> Iterator[object]:
    """What a function has around it and reads of its file, of functions those of the file alone."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not there yet
            continue
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        if not isinstance(found, types.FunctionType) or found.__globals__ is function.__globals__:
            yield found
