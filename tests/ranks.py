"""One pool of gloo ranks for all tests of a run: started at first use, ended with the interpreter."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

from placer.runtime.pool import RankPool

# Ranks import the cases of `examples` and the models of this folder by name.
for folder in (Path(__file__).parent, Path(__file__).parent.parent):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

T = TypeVar("T")

SIZE = 4


@cache
def pool() -> RankPool:
    """The pool."""
    made = RankPool(SIZE)
    atexit.register(made.close)
    return made


def on_ranks(ranks: int, function: Callable[..., T], *args: object, timeout: float = 480.0) -> list[T]:
    """`function(*args)` on so many ranks of one world; the results by rank. Functions are found by import."""
    return pool().run(ranks, function, *args, timeout=timeout)
