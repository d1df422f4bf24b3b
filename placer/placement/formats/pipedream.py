"""Reader of layer profiles as PipeDream and DAPPLE write them (github.com/msr-fiddle/pipedream, graph.txt).

One line a node, then one line an edge, indented:

    node11 -- MaxPool2d(...) -- forward_compute_time=2.211, backward_compute_time=2.788, activation_size=205520896.000,
        parameter_size=0.000 [-- stage_id=0]                                     (one line in the file)
        node10 -- node11

Times are milliseconds, sizes bytes; an activation of several tensors is written [9175040.0; 262144.0]. A node's time is
forward and backward together; what crosses a cut is the activation forward and its gradient back, so `send` = 2 *
activation_size / bandwidth (Narayanan et al., "PipeDream", SOSP 2019, section 3.1: 2 a_s / B). The file says nothing
about the machines: 4 devices, 1e9 bytes/second (the default of PipeDream's own optimizer) and memory without limit are
taken unless given; with a limit a node holds its parameters and the activation of one microbatch.
"""

from __future__ import annotations

import math
import re

from placer.errors import UsageError
from placer.placement.formats import PlaceRequest
from placer.placement.formats.dnn_partitioning import require_acyclic
from placer.placement.problem import PlacementNode, PlacementProblem

DEVICES = 4
BANDWIDTH = 1e9

_NODE = re.compile(r"(?P<name>\S+) -- (?P<what>.*?) -- (?P<costs>\w+=.*?)(?: -- stage_id=(?P<stage>\d+))?")
_EDGE = re.compile(r"\s+(?P<source>\S+) -- (?P<target>\S+)")
_COST = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def read(text: str, name: str, request: PlaceRequest) -> PlacementProblem:
    """The profile in `text`. Raises UsageError with the line for what it cannot read, for unknown nodes and cycles."""
    lines = [(number, line.rstrip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    request.require_no_more_than("bandwidth", of="PipeDream")
    bandwidth = request.bandwidth or BANDWIDTH
    nodes = [_node(line, f"{name}, line {number}", bandwidth) for number, line in lines if not line[0].isspace()]
    index = {node.name: position for position, node in enumerate(nodes)}
    edges = [_edge(line, f"{name}, line {number}", index) for number, line in lines if line[0].isspace()]
    problem = PlacementProblem(
        nodes=tuple(nodes),
        edges=tuple(edges),
        accelerators=request.devices or DEVICES,
        cpus=0,
        memory=request.memory or math.inf,
        format="pipedream",
    )
    require_acyclic(problem, name)
    return problem


def stages_of(text: str) -> dict[str, int]:
    """The stage that the authors' own plan gives each node; empty for a profile without a plan."""
    found = (_NODE.fullmatch(line.rstrip()) for line in text.splitlines())
    return {match["name"]: int(match["stage"]) for match in found if match and match["stage"] is not None}


def _node(line: str, where: str, bandwidth: float) -> PlacementNode:
    match = _NODE.fullmatch(line)
    if match is None:
        raise UsageError(f"{where}: {line[:60]!r} is no node; write 'node1 -- description -- {_FIELDS[0]}=1.0, ...'")
    costs: dict[str, str] = dict(_COST.findall(match["costs"]))
    forward, backward, activation, parameters = (_cost(costs, field, where) for field in _FIELDS)
    return PlacementNode(
        name=match["name"],
        accelerator=forward + backward,
        host=0.0,
        size=parameters + activation,
        send=2 * activation / bandwidth * 1000,
    )


def _cost(costs: dict[str, str], field: str, where: str) -> float:
    """One cost of a node; several in brackets are summed."""
    if field not in costs:
        raise UsageError(f"{where}: {field} is missing; add it")
    try:
        values = [float(part) for part in costs[field].strip("[]").split(";") if part.strip()]
    except ValueError:
        raise UsageError(f"{where}: {field} is {costs[field]!r}, a number was expected; mend it") from None
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UsageError(f"{where}: {field} is {costs[field]}, at least 0 was expected; mend it")
    return math.fsum(values)


def _edge(line: str, where: str, index: dict[str, int]) -> tuple[int, int]:
    match = _EDGE.fullmatch(line)
    if match is None:
        raise UsageError(f"{where}: {line.strip()[:60]!r} is no edge; write it indented, as in '    node1 -- node2'")
    for end in (match["source"], match["target"]):
        if end not in index:
            raise UsageError(f"{where}: the edge names {end}, which is no node of the file; name one")
    return index[match["source"]], index[match["target"]]
