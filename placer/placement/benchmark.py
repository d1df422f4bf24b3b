"""One line of `placer bench placement`, and the table of families: name -> the function that makes a family's lines.

A family is a function `rows(data: Path) -> Iterator[BenchRow]`; `data` is the folder that holds every family's folder
(`data/dnn-partitioning`, `data/piper`, ...). It yields nothing where its folder is missing, and yields each row as soon
as it is solved.

Published results of placement problems, by family, problem and form: published.yaml, checked when it is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from placer.errors import UsageError
from placer.placement.legality import Form

# name -> where its rows are made
FAMILIES = {
    "dnn-partitioning": "placer.strategies.placement.benchmarks:dnn_rows",
    "doppler": "placer.strategies.placement.benchmarks:doppler_rows",
    "profiles": "placer.strategies.placement.benchmarks:profiles_rows",
    "piper": "placer.strategies.placement.benchmarks:piper_rows",
    "aceso": "placer.strategies.placement.benchmarks:aceso_rows",
    "galvatron": "placer.strategies.placement.benchmarks:galvatron_rows",
}

# What somebody else reached: the system, its value in the row's unit, its seconds where they were published.
Published = tuple[str, float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One problem in one setting: what was reached, what is known, what is proved, what others reached.

    `value` is None where no placement was found, and `note` says why; `known` is the optimum or the best known value
    and `known_kind` which of the two ("optimum", "best known", "" where nothing is known). `seconds` is solving alone.
    """

    family: str
    problem: str
    setting: str
    value: float | None
    unit: str
    known: float | None = None
    known_kind: str = ""
    bound: float | None = None
    seconds: float
    published: tuple[Published, ...] = ()
    note: str = ""

    @property
    def gap(self) -> float | None:
        """(value - bound) / bound, never negative; None where either is missing, 0 where both are 0."""
        if self.value is None or self.bound is None:
            return None
        if self.value <= self.bound:
            return 0.0
        return (self.value - self.bound) / self.bound if self.bound > 0 else None


class Family(Protocol):
    """Makes the rows of one family of published problems."""

    def __call__(self, data: Path) -> Iterable[BenchRow]:
        """Each row as soon as it is solved; none where the family's folder is missing."""
        ...


def family(name: str) -> Family:
    """The family called `name`. Raises UsageError listing the known ones."""
    if name not in FAMILIES:
        raise UsageError(f"there is no family {name!r} of placement problems; known: {', '.join(FAMILIES)}")
    module, attribute = FAMILIES[name].split(":")
    made: Family = getattr(importlib.import_module(module), attribute)
    return made


class PublishedResult(BaseModel):
    """The optimum, where it is known, and what systems reached: [value, seconds], either may be missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimum: float | None = None
    systems: dict[str, tuple[float | None] | tuple[float | None, float]] = {}

    @property
    def published(self) -> tuple[Published, ...]:
        """(system, value, seconds) of each system."""
        return tuple(
            (system, result[0], result[1] if len(result) == 2 else None) for system, result in self.systems.items()
        )

    @property
    def known(self) -> tuple[float | None, str]:
        """The optimum, or the best value that a system reached, and which of the two it is."""
        if self.optimum is not None:
            return self.optimum, "optimum"
        values = [value for _, value, _ in self.published if value is not None]
        return (min(values), "best published") if values else (None, "")


_CONTENT = TypeAdapter(dict[str, dict[str, dict[Form, PublishedResult]]])


def published(family: str, problem: str, form: Form) -> PublishedResult | None:
    """What is published of a problem, None where nothing is."""
    return _content().get(family, {}).get(problem, {}).get(form)


@cache
def _content() -> dict[str, dict[str, dict[Form, PublishedResult]]]:
    text = files("placer.placement").joinpath("published/published.yaml").read_text()
    return _CONTENT.validate_python(yaml.safe_load(text))
