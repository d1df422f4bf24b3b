"""Fault: a mistake that the runtime could have, and how it is planted; `replaced` plants one for all who call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

Plant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong in words; the subject (`subjects.SUBJECTS`) whose result it changes; what plants it."""

    name: str
    subject: str
    plant: Plant


@contextmanager
def replaced(original: Callable[..., Any], wrong: Callable[..., Any]) -> Iterator[None]:
    """`wrong(original, ...)` wherever a module of placer has `original` under a name of its own, as if it were written
    so."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return wrong(original, *args, **kwargs)

    stand_in.__name__ = stand_in.__qualname__ = original.__name__
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if not name.startswith("placer."):
                continue
            for attribute, value in list(vars(module).items()):
                if value is original:
                    stack.enter_context(mock.patch.object(module, attribute, stand_in))
        yield


def method(owner: type, name: str, wrong: Callable[..., Any]) -> AbstractContextManager[object]:
    """The same of a method: `wrong(original, self, ...)`."""
    original = getattr(owner, name)

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return wrong(original, *args, **kwargs)

    return mock.patch.object(owner, name, stand_in)
