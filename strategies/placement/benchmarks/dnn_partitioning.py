"""Rows of `placer bench placement` for the dnn-partitioning inputs: throughput, throughput in free form, latency.

Every input under throughput-inputs is placed contiguously, those with a published free-form optimum in free form too;
every input under latency-inputs for latency. Inputs of which nothing is published are placed all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from placer.errors import InfeasibleError
from placer.placement.answers import PlaceAnswer
from placer.placement.benchmark import BenchRow, PublishedResult, published
from placer.placement.formats import PlaceRequest, read_problem
from placer.placement.legality import Form
from placer.strategies.placement.solve import solve

FAMILY = "dnn-partitioning"
REQUESTS: dict[Form, PlaceRequest] = {
    "contiguous": PlaceRequest(),
    "free": PlaceRequest(free_form=True),
    "latency": PlaceRequest(objective="latency"),
}


def rows(data: Path) -> Iterator[BenchRow]:
    """A row for every input and form; none where the folder is missing."""
    folder = data / FAMILY
    for path in sorted(folder.glob("throughput-inputs/*/*.json")):
        yield row(path, "contiguous")
        if published(FAMILY, path.stem, "free"):
            yield row(path, "free")
    for path in sorted(folder.glob("latency-inputs/*/*.json")):
        yield row(path, "latency")


def row(path: Path, form: Form) -> BenchRow:
    """One input in one form."""
    problem = read_problem(path, REQUESTS[form], format=FAMILY)
    known = published(FAMILY, path.stem, form) or PublishedResult()
    best, kind = known.known
    try:
        answer: PlaceAnswer | None = solve(problem, REQUESTS[form])
        note = "; ".join(answer.notes) if answer else ""
    except InfeasibleError as error:
        answer, note = None, str(error)
    return BenchRow(
        family=FAMILY, problem=f"{path.parent.name}/{path.stem}", setting=form,
        value=answer.objective if answer else None, unit=answer.unit if answer else "ms",
        known=best, known_kind=kind, bound=answer.bound if answer else None,
        seconds=answer.seconds if answer else 0.0, published=known.published, note=note,
    )  # fmt: skip
