"""Reader of DOPPLER's computation graphs (github.com/xinyuyao/Doppler, compute_graph/*.txt; arXiv 2505.23131).

    line 1   the number of nodes, inputs with them        line 2   the ids of the inputs (only their count is used)
    line 3   the source of each edge, line 4   its target: ops counted from 0, inputs not among them
    then a line an op   compute, transfer                  both costs in one unit; finish times are told in 1e10 of it

`transfer` is paid by every edge to another device: half of it at either end. The file says nothing of the machines: 4
equal devices with memory without limit are taken unless given.
"""

from __future__ import annotations

import math

from placer.errors import UsageError
from placer.placement.formats import PlaceRequest
from placer.placement.formats.dnn_partitioning import require_acyclic
from placer.placement.problem import PlacementNode, PlacementProblem

DEVICES = 4
# What the costs are divided by where their authors print finish times.
UNIT = 1e10
HEAD = 4


def read(text: str, name: str, request: PlaceRequest) -> PlacementProblem:
    """The graph in `text`. Raises UsageError with the line for what it cannot read, and for cycles."""
    request.require_no_more_than(of="DOPPLER")
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) <= HEAD or not lines[0]:
        raise UsageError(f"{name} ends after {len(lines)} lines; a DOPPLER graph has {HEAD} and one for every op")
    (count,) = _numbers(lines[0], f"{name}, line 1", 1)
    inputs, sources, targets = (_numbers(line, f"{name}, line {at}") for at, line in enumerate(lines[1:HEAD], 2))
    costs = [_numbers(line, f"{name}, line {at}", 2) for at, line in enumerate(lines[HEAD:], HEAD + 1) if line]
    if count != len(inputs) + len(costs):
        raise UsageError(
            f"{name}, line 1: {count:.0f} nodes are announced, {len(inputs)} inputs and {len(costs)} ops follow; "
            "mend one"
        )
    if len(sources) != len(targets):
        raise UsageError(f"{name}, lines 3 and 4: {len(sources)} edges begin and {len(targets)} end; mend one")
    problem = PlacementProblem(
        nodes=tuple(
            PlacementNode(name=str(op), accelerator=compute / UNIT, host=0.0, send=transfer / UNIT / 2)
            for op, (compute, transfer) in enumerate(costs)
        ),
        edges=tuple(
            (_op(source, len(costs), f"{name}, line 3"), _op(target, len(costs), f"{name}, line 4"))
            for source, target in zip(sources, targets, strict=True)
        ),
        accelerators=request.devices or DEVICES,
        cpus=0,
        memory=request.memory or math.inf,
        unit="x 1e10",
        format="doppler",
    )
    require_acyclic(problem, name)
    return problem


def _numbers(line: str, where: str, count: int | None = None) -> list[float]:
    """The numbers of a line, at least 0, between commas; a comma at its end is none."""
    parts = [part.strip() for part in line.split(",") if part.strip()]
    try:
        values = [float(part) for part in parts]
    except ValueError:
        raise UsageError(f"{where}: {line[:60]!r} is no list of numbers; write them with commas between") from None
    if count is not None and len(values) != count:
        raise UsageError(f"{where}: {len(values)} numbers, {count} were expected; mend that line")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UsageError(f"{where}: finite numbers of at least 0 were expected; mend that line")
    return values


def _op(value: float, count: int, where: str) -> int:
    if value != int(value) or value >= count:
        raise UsageError(f"{where}: an edge names op {value:g}, the file has ops 0 to {count - 1}; mend it")
    return int(value)
