"""What was worked out is kept: results of methods by their arguments, of functions by a key that is no argument, or of
the last object alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Method = Callable[Concatenate[Owner, Arguments], Value]


def remembered(make: Method[Owner, Arguments, Value]) -> Method[Owner, Arguments, Value]:
    """A method that makes what it returns once for equal arguments; its object keeps that."""
    name = f"remembered {make.__qualname__}"

    @wraps(make)
    def known(self: Owner, /, *given: Arguments.args, **named: Arguments.kwargs) -> Value:
        key = (given, *named.items()) if named else given
        try:
            value: Value = self.__dict__[name][key]  # hashed once: a key may hold the devices of a stage
            return value
        except KeyError:
            pass
        found = make(self, *given, **named)
        self.__dict__.setdefault(name, {})[key] = found
        return found

    return known


def of_last(make: Callable[[Key], Value]) -> Callable[[Key], Value]:
    """A function of one object that keeps what it made of the last one, which several ask for in turn."""
    last: list[tuple[Key, Value] | None] = [None]

    @wraps(make)
    def known(given: Key) -> Value:
        kept = last[0]  # read once: another thread may ask for another
        if kept is not None and kept[0] is given:
            return kept[1]
        found = make(given)
        last[0] = given, found
        return found

    return known


def once(
    known: dict[Key, Value], key: Key, make: Callable[Arguments, Value], /, *own: Arguments.args,
    **named: Arguments.kwargs,
) -> Value:  # fmt: skip
    """What is known by a key that stands for all arguments with the same result; else it is made of these, and kept."""
    try:
        return known[key]
    except KeyError:
        pass
    found = known[key] = make(*own, **named)
    return found
