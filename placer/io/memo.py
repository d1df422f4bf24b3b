"""What was worked out is kept: a dictionary that makes what it lacks, and the same for keys that are no arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


class Memo(dict[Key, Value]):
    """`memo[key]` is what `make` returns of the key, which is asked once."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[Key], Value]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, key: Key) -> Value:
        made = self[key] = self.make(key)
        return made


def once(
    known: dict[Key, Value], key: Key, make: Callable[Arguments, Value], /, *own: Arguments.args,
    **named: Arguments.kwargs,
) -> Value:  # fmt: skip
    """What is known by a key that stands for all arguments with the same result; else it is made of these, and kept."""
    if key not in known:
        known[key] = make(*own, **named)
    return known[key]
