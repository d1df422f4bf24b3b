"""Pins as people write them: `pipeline=2`, `tensor=4`, `schedule=1f1b`, `recompute=yes`, `bucket=25 MiB`,
`h.3@stage=1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import get_args

from placer.errors import UsageError, near_names
from placer.graph import Graph
from placer.io.units import quantity, written
from placer.plans.plan import ScheduleName, Sharding
from placer.search.problem import Pins

YES_NO = {"yes": True, "true": True, "1": True, "full": True, "no": False, "false": False, "0": False, "none": False}
COUNTS = ("data", "pipeline", "microbatches", "tensor", "height", "width", "sequence", "expert")
CHOICES = {"shard": get_args(Sharding), "schedule": get_args(ScheduleName)}
KNOWN = f"{', '.join((*COUNTS, *CHOICES, 'recompute'))}, bucket (bytes, 25 MiB), or BLOCK@stage=N"


def parse_pins(texts: Sequence[str] | Pins, graph: Graph) -> Pins:
    """The pins that `texts` ask for. Raises UsageError for an unknown name, value or block of `graph`."""
    if isinstance(texts, Pins):
        return texts
    _require_once(texts)
    counts: dict[str, int] = {}
    choices: dict[str, str] = {}
    recompute: bool | None = None
    bucket: int | None = None
    stage_of: list[tuple[str, int]] = []
    for text in (texts,) if isinstance(texts, str) else texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"the pin {text!r} has no value; write NAME=VALUE with NAME one of {KNOWN}")
        if name in COUNTS:
            counts[name] = _count(text, value, smallest=1)
        elif name in CHOICES:
            choices[name] = _choice(text, value, CHOICES[name])
        elif name == "recompute":
            recompute = YES_NO[_choice(text, value.lower(), tuple(YES_NO))]
        elif name == "bucket":
            bucket = _bytes(text, value)
        elif name.endswith("@stage"):
            stage_of.append((_block(name.removesuffix("@stage"), graph), _count(text, value, smallest=0)))
        else:
            raise UsageError(f"the pin {text!r} names nothing that can be pinned; NAME is one of {KNOWN}")
    return Pins(
        data=counts.get("data"),
        pipeline=counts.get("pipeline"),
        microbatches=counts.get("microbatches"),
        tensor=counts.get("tensor"),
        height=counts.get("height"),
        width=counts.get("width"),
        sequence=counts.get("sequence"),
        expert=counts.get("expert"),
        shard=choices.get("shard"),
        schedule=choices.get("schedule"),
        recompute=recompute,
        bucket=bucket,
        stage_of=tuple(stage_of),
    )


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
            found.append(f"{entry.name}={'yes' if value else 'no'}")
        elif value is not None:
            found.append(f"{entry.name}={value}")
    return tuple(found)


def _require_once(texts: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for text in (texts,) if isinstance(texts, str) else texts:
        name = text.partition("=")[0]
        if seen.setdefault(name, text) != text:
            raise UsageError(f"the pins {seen[name]!r} and {text!r} contradict each other; give one of them")


def _count(text: str, value: str, *, smallest: int) -> int:
    if not value.isdecimal() or int(value) < smallest:
        raise UsageError(f"the pin {text!r} wants a whole number of at least {smallest}, found {value!r}")
    return int(value)


def _bytes(text: str, value: str) -> int:
    size = quantity(value, "bytes")
    if size < 1 or size != int(size):
        raise UsageError(f"the pin {text!r} wants at least 1 B, in whole bytes; found {value!r}")
    return int(size)


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
