"""One pool of gloo ranks for all tests of a run: started at first use, ended with the interpreter."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from placer.runtime.pool import RankPool

T = TypeVar("T")

SIZE = 4


@cache
def pool() -> RankPool:
    """The pool."""
    made = RankPool(SIZE)
    atexit.register(made.close)
    return made


def on_ranks(ranks: int, function: Callable[..., T], *args: object, timeout: float = 120.0) -> list[T]:
    """`function(*args)` on so many ranks of one world; the results by rank. Functions are found by import."""
    return pool().run(ranks, function, *args, timeout=timeout)
