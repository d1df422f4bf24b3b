"""What functions remember of a build on meta is forgotten: `functools.lru_cache` would give it to the next build.

@lru_cache
def basis(size: int) -> Tensor: ...         a buffer of this kind, first asked for on meta, would stay there
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper
from typing import Any

# Whose functions remember nothing of a model.
_NOT_OF_MODELS = frozenset({"placer", "torch", "sympy"}) | sys.stdlib_module_names


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


def _remembering() -> list[_lru_cache_wrapper[Any]]:
    # By their type alone: what else lives may be a proxy that runs code where it is asked for its class.
    found = [one for one in gc.get_objects() if type(one) is _lru_cache_wrapper]
    return [one for one in found if str(one.__module__).partition(".")[0] not in _NOT_OF_MODELS]
