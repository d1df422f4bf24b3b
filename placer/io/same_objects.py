"""Results by the very objects they were made of: what a changed plan has in common with the plan before it are the same
objects, of which to ask that costs less than to compare all their devices.

In: objects, what else the result depends on, and how to make it. Equal objects that are not the same have a result
each. Objects are kept with the result, so that none leaves its identity to another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

# Results that are kept; with more all are forgotten. Those of a plan are some dozens.
MOST = 200_000


class OfSameObjects(Generic[Value]):
    """Results that were asked for."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[object, ...], Value]] = {}

    def of(self, objects: tuple[object, ...], values: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` returned for these objects and values, or does."""
        key = tuple(map(id, objects)), values
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            found = self._known[key] = objects, make()
        return found[1]
