"""What functions remember of a build on meta is forgotten: `functools.lru_cache` would give it to the next build.

@lru_cache
def basis(size: int) -> Tensor: ...         a buffer of this kind, first asked for on meta, would stay there
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from types import FunctionType, ModuleType
from typing import Any

# Whose functions remember nothing of a model.
_NOT_OF_MODELS = frozenset({"placer", "torch", "sympy"}) | sys.stdlib_module_names
_WRAPPING = frozenset({FunctionType, staticmethod, classmethod, _lru_cache_wrapper})


@contextmanager
def forgotten() -> Iterator[None]:
    """What is asked for in the body is asked for anew after it, by functions that remember what they gave."""
    before = {id(one): one.cache_info().misses for one in _remembering()}
    try:
        yield
    finally:
        for one in _remembering():
            if one.cache_info().misses != before.get(id(one), 0):
                one.cache_clear()


def _remembering() -> Iterator[_lru_cache_wrapper[Any]]:
    """Those that modules and their classes hold, under whatever wraps them: to look at all that lives takes a capture's
    time in a large process. One held elsewhere gives buffers without values, which are refused."""
    for name, module in tuple(sys.modules.items()):
        if name.partition(".")[0] not in _NOT_OF_MODELS and issubclass(type(module), ModuleType):
            yield from _held(object.__getattribute__(module, "__dict__"))  # a lazy one stays unloaded


def _held(names: dict[str, Any]) -> Iterator[_lru_cache_wrapper[Any]]:
    # By their types alone: what else is held may be a proxy that runs code where it is asked for its class.
    for value in tuple(names.values()):
        if issubclass(type(value), type) and value.__module__ == names.get("__name__"):
            yield from _unwrapped(tuple(vars(value).values()))
    yield from _unwrapped(tuple(names.values()))


def _unwrapped(values: Iterable[Any]) -> Iterator[_lru_cache_wrapper[Any]]:
    for value in values:
        while type(value) in _WRAPPING:
            if type(value) is _lru_cache_wrapper:
                yield value
            bound = type(value) in (staticmethod, classmethod)
            value = value.__func__ if bound else getattr(value, "__wrapped__", None)
