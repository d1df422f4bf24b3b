"""A person's code as it runs on one device, where torch.distributed has no process group.

Ranks have one while they capture a model and run its opaque parts. A model that asks for it (SyncBatchNorm, a count
that is summed over the ranks, embeddings that are gathered) would compute something else there than the model by
itself, or wait for ranks that never come to that line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any
from unittest import mock

MODULE = "torch.distributed.distributed_c10d"


@contextlib.contextmanager
def as_on_one_device() -> Iterator[None]:
    """In the body torch.distributed says on this thread that it is not initialised; other threads go on with it.

    Code that then initialises it has the group that there is, as a process has one, and ends none but its sight of it.
    Where there is none it has one of this process alone, whatever it asks for, which ends with the body: later a
    process may join the ranks of a plan.
    """
    distributed = sys.modules.get(MODULE)
    if distributed is None or not hasattr(distributed, "GroupMember"):
        yield
    elif distributed.GroupMember.WORLD is None:
        with _alone(distributed):
            yield
    else:
        hidden = _WithoutWorld(distributed.GroupMember)
        with (
            mock.patch.object(distributed, "GroupMember", hidden),
            _instead("init_process_group", hidden.show),
            _instead("destroy_process_group", hidden.hide),
        ):
            yield


@contextlib.contextmanager
def _alone(distributed: Any) -> Iterator[None]:
    """In the body a group that is initialised is of this process alone; it ends with the body."""
    make, made = distributed.init_process_group, list[object]()

    def group_of_one(*_: object, **__: object) -> None:
        make("gloo", store=sys.modules["torch.distributed"].HashStore(), rank=0, world_size=1)
        made.append(distributed.GroupMember.WORLD)

    try:
        with _instead("init_process_group", group_of_one):
            yield
    finally:
        if distributed.GroupMember.WORLD is not None and distributed.GroupMember.WORLD in made:
            distributed.destroy_process_group()


@contextlib.contextmanager
def _instead(name: str, stand_in: Callable[..., None]) -> Iterator[None]:
    """In the body, on this thread, `stand_in` is what modules know as torch.distributed's function `name`.

    Modules that are imported meanwhile keep what they found, which is torch's own function again after the body.
    """
    real, here = getattr(sys.modules[MODULE], name), {threading.get_ident()}

    def either(*arguments: Any, **keywords: Any) -> Any:
        return (stand_in if threading.get_ident() in here else real)(*arguments, **keywords)

    try:
        with contextlib.ExitStack() as patches:
            for module in _knowing(name, len(sys.modules)):
                if module.__dict__.get(name) is real:
                    patches.enter_context(mock.patch.object(module, name, either))
            yield
    finally:
        here.clear()


@lru_cache(maxsize=4)  # of two functions, and of no more modules than there were at last
def _knowing(name: str, modules: int) -> tuple[ModuleType, ...]:
    """The modules that have `name` of torch.distributed, among as many as are loaded."""
    loaded = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return tuple(module for module in loaded if name in module.__dict__)


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
        self._here = threading.get_ident()
        self._shown = False

    def __getattr__(self, name: str) -> Any:
        hidden = name == "WORLD" and not self._shown and threading.get_ident() == self._here
        return None if hidden else getattr(self._real, name)

    def show(self, *_: object, **__: object) -> None:
        """In place of `init_process_group`: from now on the group is there."""
        self._shown = True

    def hide(self, group: object = None) -> None:
        """In place of `destroy_process_group`: from now on the group is not there, unless one of its parts is meant."""
        if group is None or group is self._real.WORLD:
            self._shown = False
