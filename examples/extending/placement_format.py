"""A file format of one's own for `placer place`: a reader, and its lines in two tables.

    embed  0.5   4096              op, seconds, bytes it sends on
    layer  0.25  4096  embed       and the ops that it reads
    head   0.75     8  layer

A reader that is to stay is a file in placer/placement/formats/, its name a line of READERS there and of PLACERS in
placer/placement/solvers.py, which says who solves what it returns.
"""

from __future__ import annotations

from placer.errors import UsageError
from placer.placement.formats import PlaceRequest
from placer.placement.problem import PlacementNode, PlacementProblem

BANDWIDTH = 1e9
# What stands in the two tables.
READER = "examples.extending.placement_format:read"
PLACER = "placer.strategies.placement.solve:solve"


def read(text: str, name: str, request: PlaceRequest) -> PlacementProblem:
    """The problem in `text`. Raises UsageError with the line for what it cannot read."""
    nodes: list[PlacementNode] = []
    edges: list[tuple[int, int]] = []
    index: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            op, seconds, size, *sources = line.split()
            send = float(size) / (request.bandwidth or BANDWIDTH)
            node = PlacementNode(name=op, accelerator=float(seconds), host=0.0, send=send)
            edges += [(index[source], len(nodes)) for source in sources]
        except (ValueError, KeyError):
            raise UsageError(
                f"{name}, line {number}: {line[:60]!r} is no op; write its name, seconds, bytes and ops of lines above"
            ) from None
        index[op] = len(nodes)
        nodes.append(node)
    return PlacementProblem(
        nodes=tuple(nodes), edges=tuple(edges), accelerators=request.devices or 2, cpus=0,
        memory=request.memory or float("inf"), unit="s", format="lines",
    )  # fmt: skip
