"""What people ask of a search, as they write it.

pins      `pipeline=2`, `tensor=4`, `schedule=1f1b`, `recompute=selective`, `bucket=25 MiB`, `reduction=server`,
          `h.3@stage=1`
budget    how long it may go on: `200` evaluated plans, `30s`, or both, `200,30s`
islands   how many populations share it, where a strategy has several; a file that such a search is kept in
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import floor, inf
from pathlib import Path
from typing import Any, get_args

from placer.errors import UsageError, near_names
from placer.graph import Graph
from placer.io.files import STANDARD_OUTPUT, require_writable
from placer.io.units import quantity, written
from placer.plans.plan import Recompute, Reduction, ScheduleName, Sharding, recompute_word
from placer.search.problem import OF_ISLANDS, Pins

RECOMPUTES: dict[str, Recompute] = {
    "yes": True, "true": True, "1": True, "full": True, "no": False, "false": False, "0": False, "none": False,
    "selective": "selective",
}  # fmt: skip
COUNTS = ("data", "pipeline", "microbatches", "tensor", "height", "width", "sequence", "rows", "expert")
CHOICES = {"shard": get_args(Sharding), "schedule": get_args(ScheduleName)}
REDUCTIONS: dict[str, Reduction] = {way: way for way in get_args(Reduction)}
KNOWN = f"{', '.join((*COUNTS, *CHOICES, 'recompute', 'reduction'))}, bucket (bytes, 25 MiB), or BLOCK@stage=N"
# Each is a population of some dozens of plans; no machine has cores for more.
MOST_ISLANDS = 1_000


def parse_pins(texts: Sequence[str] | Mapping[str, object] | Pins, graph: Graph) -> Pins:
    """The pins that `texts` ask for, by themselves or by name. Raises UsageError for an unknown name, value or block of
    `graph`."""
    if isinstance(texts, Pins):
        return texts
    if isinstance(texts, Mapping):
        texts = [f"{name}={value}" for name, value in texts.items()]
    elif isinstance(texts, str):
        texts = [texts]
    _require_once(texts)
    pins = Pins()
    for text in texts:
        pins = _pinned(pins, text, graph)
    return pins


def _pinned(pins: Pins, text: str, graph: Graph) -> Pins:
    """These pins and one more."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"the pin {text!r} has no value; write NAME=VALUE with NAME one of {KNOWN}")
    if name.endswith("@stage"):
        block = _block(name.removesuffix("@stage"), graph)
        return replace(pins, stage_of=(*pins.stage_of, (block, _count(text, value, smallest=0))))
    return replace(pins, **{name: _value(name, text, value)})


def _value(name: str, text: str, value: str) -> Any:
    """What a pin of this name asks for."""
    if name in COUNTS:
        return _count(text, value, smallest=1)
    if name in CHOICES:
        return _choice(text, value, CHOICES[name])
    if name == "recompute":
        return RECOMPUTES[_choice(text, value.lower(), tuple(RECOMPUTES))]
    if name == "reduction":
        return REDUCTIONS[_choice(text, value, tuple(REDUCTIONS))]
    if name == "bucket":
        return _bytes(text, value)
    raise UsageError(f"the pin {text!r} names nothing that can be pinned; NAME is one of {KNOWN}")


def pin_texts(pins: Pins) -> tuple[str, ...]:
    """The same pins as people write them."""
    found = []
    for entry in fields(pins):
        value = getattr(pins, entry.name)
        if entry.name == "stage_of":
            found += [f"{block}@stage={stage}" for block, stage in value]
        elif entry.name == "bucket" and value is not None:
            found.append(f"bucket={written(value, 'bytes')}")
        elif isinstance(value, bool):
            found.append(f"{entry.name}={recompute_word(value)}")
        elif value is not None:
            found.append(f"{entry.name}={value}")
    return tuple(found)


def each_dropped(pins: Pins) -> Iterator[tuple[str, Pins]]:
    """Each pin as people write it, with the others."""
    for entry in fields(pins):
        value = getattr(pins, entry.name)
        if entry.name == "stage_of":
            for at, one in enumerate(value):
                yield pin_texts(Pins(stage_of=(one,)))[0], replace(pins, stage_of=(*value[:at], *value[at + 1 :]))
        elif value is not None:
            alone: dict[str, Any] = {entry.name: value}
            free: dict[str, Any] = {entry.name: None}
            yield pin_texts(Pins(**alone))[0], replace(pins, **free)


def _require_once(texts: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for text in texts:
        name = text.partition("=")[0]
        if seen.setdefault(name, text) != text:
            raise UsageError(f"the pins {seen[name]!r} and {text!r} contradict each other; give one of them")


def _count(text: str, value: str, *, smallest: int) -> int:
    if not value.isdecimal() or int(value) < smallest:
        raise UsageError(f"the pin {text!r} wants a whole number of at least {smallest}, found {value!r}")
    return int(value)


def _bytes(text: str, value: str) -> int:
    size = quantity(value, "bytes")
    if not 1 <= size < inf:
        raise UsageError(f"the pin {text!r} wants at least 1 B; found {value!r}")
    return floor(size)  # 0.6 MiB are whole bytes and a part of one


def _choice(text: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise UsageError(f"the pin {text!r} wants one of {', '.join(allowed)}; found {value!r}")
    return value


def _block(name: str, graph: Graph) -> str:
    names = [block.name for block in graph.blocks]
    if name in names:
        return name
    close = near_names(name, names)
    raise UsageError(f"the model has no block {name!r}; there are {len(names)}, such as {', '.join(close)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """At most so many evaluated plans, and so many seconds of search; None is without end."""

    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.evaluations is not None and self.evaluations < 1:
            raise UsageError(f"the budget is {self.evaluations} evaluations; give at least 1")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"the budget is {self.seconds} seconds; give more than 0")


def budget_of(given: Budget | str | int | None) -> Budget:
    """A budget from itself, a number of evaluations or a text. Raises UsageError for what is none."""
    if isinstance(given, Budget):
        return given
    if given is None:
        return Budget()
    if isinstance(given, int) and not isinstance(given, bool):
        return Budget(evaluations=given)
    if not isinstance(given, str):
        raise UsageError(f"the budget is {given!r}; give a number of evaluations, or a text such as 30s or 200,30s")
    parts = [part.strip() for part in given.split(",")]
    counts = [part for part in parts if part.isdecimal()]
    times = [part for part in parts if not part.isdecimal()]
    if len(counts) > 1 or len(times) > 1:
        raise UsageError(f"the budget {given!r} says a thing twice; give evaluations, seconds, or both, as in 200,30s")
    return Budget(evaluations=int(counts[0]) if counts else None, seconds=_seconds(given, times[0]) if times else None)


def _seconds(given: str, text: str) -> float:
    """`30s`, `500 ms`, `2min`."""
    minutes = text.removesuffix("min").strip()
    try:
        return 60 * quantity(f"{minutes} s", "seconds") if minutes != text else quantity(text, "seconds")
    except UsageError:
        raise UsageError(
            f"the budget {given!r} is neither a number of evaluations nor a time; write 200, 30s, 2min or 200,30s"
        ) from None


def require_islands(strategy: str, *, islands: int | None, resume: Path | None, budget: int | None) -> None:
    """Raise UsageError for islands or a kept search of a strategy that has none, for islands without a plan each to
    evaluate, and for a file that cannot be written."""
    asked = [] if islands is None else [f"islands ({islands})"]
    asked += [] if resume is None else [f"a search to be kept and gone on with ({resume})"]
    if asked and strategy not in OF_ISLANDS:
        raise UsageError(
            f"{' and '.join(asked)} were asked for of the strategy {strategy!r}, which has none; ask for the strategy "
            f"{' or '.join(OF_ISLANDS)}, or leave that out"
        )
    most = MOST_ISLANDS if budget is None else min(budget, MOST_ISLANDS)
    if islands is not None and not 1 <= islands <= most:
        found = "" if budget is None else f" and {budget} evaluations in the budget"
        raise UsageError(f"a plan was asked for with {islands} islands{found}; give from 1 to {most}")
    if resume is not None and str(resume) == STANDARD_OUTPUT:
        raise UsageError("a search was to be kept on standard output (-), and goes on from there; name a file")
    if resume is not None:
        require_writable(resume)
