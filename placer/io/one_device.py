"""A person's code as it runs on one device, where torch.distributed has no process group.

Ranks have one while they capture a model and run its opaque parts. A model that asks for it (SyncBatchNorm, a count
that is summed over the ranks, embeddings that are gathered) would compute something else there than the model by
itself, or wait for ranks that never come to that line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

MODULE = "torch.distributed.distributed_c10d"


@contextlib.contextmanager
def as_on_one_device() -> Iterator[None]:
    """In the body torch.distributed says on this thread that it is not initialised; other threads go on with it. Code
    that then initialises it has the group that there is: a process has one."""
    distributed = sys.modules.get(MODULE)
    if distributed is None or not hasattr(distributed, "GroupMember") or distributed.GroupMember.WORLD is None:
        yield
        return
    hidden = _WithoutWorld(distributed.GroupMember)
    with (
        mock.patch.object(distributed, "GroupMember", hidden),
        mock.patch.object(distributed, "init_process_group", hidden.show),
        mock.patch.object(sys.modules["torch.distributed"], "init_process_group", hidden.show),
    ):
        yield


@contextlib.contextmanager
def ranks_asked_for() -> Iterator[list[str]]:
    """In the body torch.distributed is not initialised; what is asked of its groups meanwhile is in the list."""
    distributed, asked = sys.modules.get(MODULE), list[str]()
    if distributed is None or not hasattr(distributed, "GroupMember"):
        yield asked
        return
    with mock.patch.object(distributed, "GroupMember", _Asked(distributed.GroupMember, asked)):
        yield asked


class _Asked:
    """torch's GroupMember without a default group, which notes what it is asked for."""

    def __init__(self, real: Any, asked: list[str]) -> None:
        self._real, self._asked = real, asked

    def __getattr__(self, name: str) -> Any:
        self._asked.append(name)
        return None if name == "WORLD" else getattr(self._real, name)


class _WithoutWorld:
    """torch's GroupMember, which every question for the default group ends at, without that group on one thread."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._thread: int | None = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return None if name == "WORLD" and threading.get_ident() == self._thread else getattr(self._real, name)

    def show(self, *_: object, **__: object) -> None:
        """In place of `init_process_group`: from now on the group is there."""
        self._thread = None
