"""One device has no process group: the rank that judges puts its own aside while the model computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed


@contextmanager
def alone() -> Iterator[None]:
    """In the body torch.distributed is not initialised."""
    if not distributed.is_available() or not distributed.is_initialized():
        yield
        return
    everyone = distributed.group.WORLD
    distributed.group.WORLD = None
    try:
        yield
    finally:
        distributed.group.WORLD = everyone
