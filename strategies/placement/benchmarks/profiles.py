"""Rows of `placer bench placement` for layer profiles (PipeDream, DAPPLE): contiguous throughput on a few devices.

The profiles name no machines, so the setting is ours: 4 devices (or as many as the authors' plan in the file has
stages) joined by 10 GB/s, memory without limit. Where the file holds the authors' own stages, their largest load by
the same evaluator stands beside ours, their replication left aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from placer.placement.benchmark import BenchRow, Published
from placer.placement.evaluator import largest_load
from placer.placement.formats import PlaceRequest
from placer.placement.formats.pipedream import DEVICES, read, stages_of
from placer.placement.problem import PlacementProblem
from placer.strategies.placement.solve import solve

FAMILY = "profiles"
FOLDERS = ("pipedream", "dapple")
BANDWIDTH = 1e10


def rows(data: Path) -> Iterator[BenchRow]:
    """A row for every profile; none where the folders are missing."""
    for path in sorted(path for folder in FOLDERS for path in (data / folder).glob("**/*.txt")):
        text = path.read_text()
        if "forward_compute_time=" in text:
            name = path.parent.name if path.name == "graph.txt" else path.stem
            yield row(text, f"{path.relative_to(data).parts[0]}/{name}")


def row(text: str, name: str) -> BenchRow:
    """One profile."""
    stages = stages_of(text)
    devices = len(set(stages.values())) or DEVICES
    request = PlaceRequest(devices=devices, bandwidth=BANDWIDTH)
    problem = read(text, name, request)
    answer = solve(problem, request)
    return BenchRow(
        family=FAMILY, problem=name, setting=f"{devices} devices, {BANDWIDTH / 1e9:g} GB/s, contiguous",
        value=answer.objective, unit=answer.unit, bound=answer.bound, seconds=answer.seconds,
        published=_authors(problem, stages), note="; ".join(answer.notes),
    )  # fmt: skip


def _authors(problem: PlacementProblem, stages: dict[str, int]) -> tuple[Published, ...]:
    if not stages:
        return ()
    numbers = sorted(set(stages.values()))
    placement = tuple(numbers.index(stages[node.name]) for node in problem.nodes)
    return (("authors' stages, one device each", largest_load(problem, placement), None),)
