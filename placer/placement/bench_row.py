"""One line of `placer bench placement`, and the table of families: name -> the function that makes a family's lines.

A family is a function `rows(data: Path) -> Iterator[BenchRow]`; `data` is the folder that holds every family's folder
(`data/dnn-partitioning`, `data/piper`, ...). It yields nothing where its folder is missing, and yields each row as soon
as it is solved.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from placer.errors import UsageError

# name -> where its rows are made
FAMILIES = {
    "dnn-partitioning": "placer.strategies.bench_dnn:rows",
    "profiles": "placer.strategies.bench_profiles:rows",
    "piper": "placer.strategies.bench_piper:rows",
    "aceso": "placer.strategies.bench_aceso:rows",
    "galvatron": "placer.strategies.bench_galvatron:rows",
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
