"""What may be wrong with a value in a file: changes of JSON trees that know keys, items, numbers and references.

A change leaves the tree it is given as it is; only what lies on the way to the changed value is copied.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from random import Random

from pydantic import JsonValue

Way = tuple[str | int, ...]

NUMBERS: tuple[float, ...] = (
    -1, 0, 1, 2, 3, 7, -2, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**9, 10**30, 10**400,
    -0.0, 0.5, 1.5, -0.5, 1e-320, 1e-9, 1e9, 1e30, 1e308, -1e308, math.nan, math.inf, -math.inf,
)  # fmt: skip
WORDS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "none", "None", "null", "true", "float33", "float32", "int8", "gpipe",
    "interleaved", "zero-bubble", "gradients", "optimizer", "whole", "cut 0", "cut 1", "cut 99", "partial", "sum",
    "other",
    "x:nothing", "x:", "b0.0", "b-1.0", "b-2.0", "b99.0", "b0.99", "b0", "i0", "i99", "p0", "p-1", "p99", "o0.0",
    "o99.0",
    "o0.99", "o", "é", "\x00", "\x1b[2J\x1b]0;spoilt\x07", "\x9b31m", "\u202etxt", "\ud800", "\r\n", "[red]",
    "../../etc",
    "__class__", "80 GiB", "-5 us", "1e400 B/s", "0 B/s", "400 Gb/s", "NaN s", "101%", "-3%", "1e999%",
)  # fmt: skip
_REFERENCE = re.compile(r"-?\d+")
DEEP = (20, 400)


def spoiled(tree: JsonValue, random: Random, times: int) -> JsonValue:
    """`tree` after so many changes, each at a place of its own."""
    for _ in range(times):
        tree = _changed(tree, _way(tree, random), random)
    return tree


def at(tree: JsonValue, way: Way) -> JsonValue:
    """What lies at the end of `way`."""
    for step in way:
        tree = tree[step]  # type: ignore[index, call-overload]  # ways are made of the tree
    return tree


def put(tree: JsonValue, way: Way, value: JsonValue) -> JsonValue:
    """`tree` with `value` at the end of `way`."""
    return _altered(tree, way[:-1], lambda holder: _with(holder, way[-1], value)) if way else value


def _way(tree: JsonValue, random: Random) -> Way:
    """A way to some value: at each step any of the keys or items, so that rare parts are met as often as large ones."""
    way: Way = ()
    while isinstance(tree, dict | list) and tree and (not way or random.random() > 0.1):
        step = random.choice(list(tree)) if isinstance(tree, dict) else random.randrange(len(tree))
        way, tree = (*way, step), at(tree, (step,))
    return way


def _changed(tree: JsonValue, way: Way, random: Random) -> JsonValue:
    if not way:
        return _value(tree, tree, random)
    if random.random() < 0.6:
        return put(tree, way, _value(at(tree, way), tree, random))
    change = random.choice(_HOLDERS)
    return _altered(tree, way[:-1], lambda holder: change(holder, way[-1], random))


def _altered(tree: JsonValue, way: Way, change: Callable[[JsonValue], JsonValue]) -> JsonValue:
    """`tree` with `change` of what lies at the end of `way`; the rest is shared."""
    return _with(tree, way[0], _altered(at(tree, way[:1]), way[1:], change)) if way else change(tree)


def _with(holder: JsonValue, step: str | int, value: JsonValue) -> JsonValue:
    if isinstance(holder, dict):
        return {**holder, str(step): value}
    assert isinstance(holder, list) and isinstance(step, int)
    return [*holder[:step], value, *holder[step + 1 :]]


def _value(value: JsonValue, tree: JsonValue, random: Random) -> JsonValue:
    """Another value in the place of `value`: near it, at a border, of another type, or from elsewhere in the tree."""
    kinds: list[Callable[[], JsonValue]] = [
        lambda: random.choice(NUMBERS),
        lambda: random.choice(WORDS),
        lambda: random.choice((None, True, False, [], {}, [value], {"use": value}, str(value)[:200])),
        lambda: at(tree, _way(tree, random)),
    ]
    if isinstance(value, int | float):
        kinds += [lambda: _near(value, random)] * 3
    if isinstance(value, str):
        kinds += [lambda: _text(value, random)] * 3
    if isinstance(value, list | dict):
        kinds += [lambda: _size(value, random)] * 3
    return random.choice(kinds)()


def _near(value: float, random: Random) -> JsonValue:
    near: tuple[Callable[[float], float], ...] = (
        lambda v: v + 1, lambda v: v - 1, lambda v: -v, lambda v: v * 2, lambda v: v * 10**6, lambda v: v / 2,
        lambda v: float(v), lambda v: v * 1e300, lambda v: v * 1e-300,
    )  # fmt: skip
    try:
        return random.choice(near)(value)
    except (OverflowError, ValueError):
        return math.inf


def _text(value: str, random: Random) -> JsonValue:
    """A text with another number in it, cut, doubled, very long, or with characters that a terminal obeys."""
    pick = random.randrange(6)
    numbers = list(_REFERENCE.finditer(value))
    if pick <= 2 and numbers:
        found = random.choice(numbers)
        other = str(int(found[0]) + random.choice((-1, 1, 1000, 10**20)))
        return value[: found.start()] + other + value[found.end() :]
    if pick == 3:
        at_most = random.randrange(len(value) + 1)
        return value[:at_most] + random.choice(WORDS) + value[at_most:]
    if pick == 4:
        return value * (100_000 // max(1, len(value)) if random.random() < 0.05 else 2)
    return value[: len(value) // 2] if pick == 5 else random.choice((value.upper(), value[::-1], f" {value}"))


def _size(value: JsonValue, random: Random) -> JsonValue:
    """A list or object that is longer, shorter, empty, in another order or nested deeply."""
    if random.random() < 0.03:
        for _ in range(random.choice(DEEP)):
            value = [value]
        return value
    if isinstance(value, dict):
        names = random.sample(list(value), len(value))
        return {name: value[name] for name in names[: random.randrange(len(names) + 1)]}
    assert isinstance(value, list)
    again: tuple[list[JsonValue], ...] = (
        value * 2,
        value[:-1],
        value[1:],
        value[::-1],
        value * 50,
        [*value, *value[-1:]],
    )
    return random.choice(again)


def _removed(holder: JsonValue, step: str | int, random: Random) -> JsonValue:
    if isinstance(holder, dict):
        return {name: value for name, value in holder.items() if name != step}
    assert isinstance(holder, list) and isinstance(step, int)
    return holder[:step] + holder[step + 1 :]


def _renamed(holder: JsonValue, step: str | int, random: Random) -> JsonValue:
    if not isinstance(holder, dict):
        return _doubled(holder, step, random)
    other = random.choice([*holder, f"{step}s", str(step).upper(), random.choice(WORDS)])
    return {other if name == step else name: value for name, value in holder.items()}


def _doubled(holder: JsonValue, step: str | int, random: Random) -> JsonValue:
    if isinstance(holder, dict):
        return {**holder, f"{step}2": holder[str(step)]}
    assert isinstance(holder, list) and isinstance(step, int)
    return [*holder[:step], holder[step], *holder[step:]]


def _swapped(holder: JsonValue, step: str | int, random: Random) -> JsonValue:
    other: str | int = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))  # type: ignore[arg-type]
    return _with(_with(holder, step, at(holder, (other,))), other, at(holder, (step,)))


_HOLDERS = (_removed, _renamed, _doubled, _swapped)
