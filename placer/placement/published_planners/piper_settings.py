"""The settings of Piper's graphs with a best known value: `published/piper.csv`.

The values are those of an independent run of the published planner and of its equal-split planner (PipeDream-2BW rule)
on both graphs of the paper that ship with it, all at 25 GiB/s; empty: found infeasible. bert32a100 is in seconds,
resnet in milliseconds (with a bandwidth per second, as published: its communication weighs 1000 times too little).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

BANDWIDTH = 25 * 2**30
UNITS = {"bert32a100": "s", "resnet": "ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperSetting:
    """One setting: the graph by name, the machines, the best known value (None: infeasible), that of an equal split."""

    graph: str
    devices: int
    memory_GiB: float  # noqa: N815 - the unit of the table
    microbatches: int
    best_known: float | None
    equal_split: float | None


def published_settings() -> tuple[PiperSetting, ...]:
    """All of them, in the order of the table."""
    text = (files("placer.placement") / "published/piper.csv").read_text()
    return tuple(
        PiperSetting(
            graph=row["graph"],
            devices=int(row["devices"]),
            memory_GiB=float(row["memory_GiB"]),
            microbatches=int(row["microbatches"]),
            best_known=float(row["best_known"]) if row["best_known"] else None,
            equal_split=float(row["equal_split"]) if row["equal_split"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )
