"""One pool of gloo ranks for all tests of a run, which know every model captured so far; ended with the interpreter."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from examples.parity import cases as parity_cases
from placer.plans.plan import Plan
from placer.runtime.distributed.rank_pool import RankPool

T = TypeVar("T")

SIZE = 6


@cache
def pool() -> RankPool:
    """The pool."""
    made = RankPool(SIZE)
    atexit.register(made.close)
    return made


def on_ranks(
    ranks: int, function: Callable[..., T], *args: object, timeout: float = 1800.0, verified: bool = True
) -> list[T]:
    """`function(*args)` on so many ranks of one world; the results by rank. Functions are found by import.

    Plans among the arguments are captured here first: once, not by every rank; verified: as `verify` needs them.
    """
    new = [parity_cases.prepare(plan, verified=verified) for plan in args if isinstance(plan, Plan)]
    if any(new):
        pool().close()
    return pool().run(ranks, function, *args, timeout=timeout)
