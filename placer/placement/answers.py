"""What `placer place` answers: a placement judged by the evaluator and the legality check, never by its solver."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx

from placer.errors import StrategyError
from placer.placement.device_queues import DeviceQueues
from placer.placement.evaluator import device_loads, device_nodes, finish_time
from placer.placement.legality import Form, classes, precedences, violations
from placer.placement.problem import Placement, PlacementProblem

# A bound that another order of the same additions moved by this share of the objective is the objective.
ROUNDING = 1e-9
# Integer programs count in whole units: a smaller gap is theirs, not the placement's.
PROVED = 1e-6

KINDS = {
    "contiguous": "largest device load, contiguous",
    "free": "largest device load, free form",
    "makespan": "finish time, first come first served",
    "latency": "finish time, one contiguous subgraph per accelerator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A device (or group of devices) and what it holds, in pipeline order; `load` in the answer's unit.

    `data` and `tensor` are the degrees of a group, `variants` how each of its nodes runs, where a format knows these.
    """

    device: str
    nodes: tuple[str, ...]
    load: float
    memory_bytes: float = 0.0
    detail: str = ""
    data: int = 1
    tensor: int = 1
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer:
    """The best placement found and how far it can be from the best: bound <= best possible <= objective.

    `seconds` is solving alone. `status` is "optimal" (proved to one part in a million) or "feasible"
    (`bound` is what is proved).
    """

    objective: float
    unit: str
    kind: str
    bound: float
    seconds: float
    assignment: tuple[tuple[str, str], ...]
    stages: tuple[PlacedStage, ...]
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """(objective - bound) / bound, 0 where they are equal, infinite over a bound of 0."""
        if self.objective <= self.bound:
            return 0.0
        return (self.objective - self.bound) / self.bound if self.bound > 0 else float("inf")

    @property
    def status(self) -> str:
        """optimal or feasible."""
        return "optimal" if self.gap <= PROVED else "feasible"


def objective_of(problem: PlacementProblem, placement: Placement, form: Form) -> float:
    """The value of a legal placement in the problem's unit."""
    if form == "makespan":
        return DeviceQueues(problem).finish(placement)
    return finish_time(problem, placement) if form == "latency" else max(device_loads(problem, placement))


def judged(
    problem: PlacementProblem, placement: Placement, form: Form, *, bound: float, seconds: float, notes: tuple[str, ...]
) -> PlaceAnswer:
    """The answer for `placement`, evaluated afresh. Raises StrategyError where it is illegal or the bound too high."""
    complaints = list(violations(problem, placement, form))
    if complaints:
        raise StrategyError(f"a solver returned a placement that does not hold: {'; '.join(complaints[:5])}")
    objective = objective_of(problem, placement, form)
    if abs(objective - bound) <= ROUNDING * objective:
        bound = objective
    if bound > objective:
        raise StrategyError(f"a solver proved {bound!r} {problem.unit}, its own placement reaches {objective!r}")
    names = [problem.device_name(device) for device in placement]
    return PlaceAnswer(
        objective=objective, unit=problem.unit, kind=KINDS[form], bound=bound, seconds=seconds,
        assignment=tuple((node.name, name) for node, name in zip(problem.nodes, names, strict=True)),
        stages=_stages(problem, placement, form), notes=notes,
    )  # fmt: skip


def _stages(problem: PlacementProblem, placement: Placement, form: Form) -> tuple[PlacedStage, ...]:
    """The devices in use: in pipeline order where there is one, in the order of their numbers elsewhere."""
    used = sorted(set(placement))
    order = _pipeline_order(problem, placement) if form == "contiguous" else used
    members, loads = device_nodes(problem, placement), device_loads(problem, placement)
    return tuple(
        PlacedStage(
            device=problem.device_name(device),
            nodes=tuple(problem.nodes[node].name for node in members[device]),
            load=loads[device],
            memory_bytes=sum(problem.nodes[node].size for node in members[device]),
        )
        for device in order
    )


def _pipeline_order(problem: PlacementProblem, placement: Placement) -> list[int]:
    labels = classes(problem)
    device_of = dict(zip(labels, placement, strict=True))
    pairs = {(device_of[a], device_of[b]) for a, b in precedences(problem, labels)}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(set(placement))
    graph.add_edges_from((a, b) for a, b in sorted(pairs) if a != b)
    return list(nx.lexicographical_topological_sort(graph))
