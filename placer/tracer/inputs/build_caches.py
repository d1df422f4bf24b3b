"""What functions remember of a build on meta is forgotten: `functools.lru_cache` would give it to the next build.

@lru_cache
def basis(size: int) -> Tensor: ...         a buffer of this kind, first asked for on meta, would stay there
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
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
    imported = dict(sys.modules)
    before = [(one, one.cache_info().misses) for one in _remembering(imported)]
    try:
        yield
    finally:
        new = {name: module for name, module in tuple(sys.modules.items()) if name not in imported}
        for one, misses in (*before, *((one, 0) for one in _remembering(new))):
            if one.cache_info().misses != misses:
                one.cache_clear()


def _remembering(modules: Mapping[str, ModuleType]) -> Iterator[_lru_cache_wrapper[Any]]:
    """Those that modules and their classes hold, under whatever wraps them: to look at all that lives takes a capture's
    time in a large process. One held elsewhere gives buffers without values, which are refused."""
    for name, module in modules.items():
        if name.partition(".")[0] not in _NOT_OF_MODELS and issubclass(type(module), ModuleType):
            yield from _held(object.__getattribute__(module, "__dict__"))  # a lazy one stays unloaded


def _held(names: dict[str, Any]) -> Iterator[_lru_cache_wrapper[Any]]:
    # By their types alone: what else is held may be a proxy that runs code where it is asked for its class.
    values, name = tuple(names.values()), names.get("__name__")
    for value in values:
        members = type.__getattribute__(value, "__dict__") if issubclass(type(value), type) else {}
        if members.get("__module__") == name:
            yield from _unwrapped(tuple(members.values()))
    yield from _unwrapped(values)


def _unwrapped(values: Iterable[Any]) -> Iterator[_lru_cache_wrapper[Any]]:
    for value in values:
        while (kind := type(value)) in _WRAPPING:
            if kind is _lru_cache_wrapper:
                yield value
            if kind is FunctionType and value.__closure__ is None:
                break  # it wraps nothing
            value = value.__func__ if kind in (staticmethod, classmethod) else getattr(value, "__wrapped__", None)
