"""Rows of `placer bench placement` for Piper: every published setting, beside its best known value."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from placer.errors import Infeasible
from placer.placement.benchmark import BenchRow
from placer.placement.formats import PlaceRequest
from placer.placement.formats.piper import read_piper
from placer.placement.published_planners.piper import value_of
from placer.placement.published_planners.piper_settings import BANDWIDTH, UNITS, PiperSetting, published_settings
from placer.strategies.placement.piper.search import solve_piper

FAMILY = "piper"


def rows(data: Path) -> Iterator[BenchRow]:
    """A row for every setting whose graph is there."""
    for setting in published_settings():
        found = row(data, setting)
        if found is not None:
            yield found


def row(data: Path, setting: PiperSetting) -> BenchRow | None:
    """One setting; None where its graph is missing."""
    path = data / "piper" / "inputs" / f"{setting.graph}.json"
    if not path.is_file():
        return None
    memory = setting.memory_GiB * 2**30
    request = PlaceRequest(
        devices=setting.devices, memory=memory, bandwidth=BANDWIDTH, microbatches=setting.microbatches
    )
    problem = read_piper(path, request)
    started = time.perf_counter()
    found = solve_piper(problem)
    seconds = time.perf_counter() - started
    if isinstance(found, Infeasible):
        value, bound, note = None, None, "infeasible" + ("" if setting.best_known is None else ", but a plan is known")
    else:
        value, bound = value_of(problem, found.stages).value, found.bound
        note = "a plan, though none is known" if setting.best_known is None else ""
    return BenchRow(
        family=FAMILY, problem=setting.graph, setting=f"{setting.devices} devices, {setting.memory_GiB:g} GiB",
        value=value, unit=UNITS[setting.graph], known=setting.best_known, bound=bound, seconds=seconds, note=note,
        known_kind="best known" if setting.best_known is not None else "infeasible",
        published=(("equal split", setting.equal_split, None),) if setting.equal_split is not None else (),
    )  # fmt: skip
