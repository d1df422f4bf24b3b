"""A placement file's graph as tasks on devices, and what a list scheduler answers for `placer place --strategy`.

makespan, latency    tasks are nodes, colours are groups; for latency every CPU is a lone device
largest device load  tasks are the classes of `contraction` (contiguous: in their order), edges what crosses between two

Between two accelerators a node's output takes `send` twice, out of the one and into the other, to or from a CPU once.
Of these answers nothing is proved: the bound is 0.
"""

from __future__ import annotations

import math
import time

from placer.costs.communication.network import LinkCost
from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.placement.answers import PlaceAnswer, judged
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.legality import Form, violations
from placer.placement.problem import Placement, PlacementProblem
from placer.strategies.lists.methods import method
from placer.strategies.lists.task_graph import Edge, TaskGraph
from placer.strategies.placement.contraction import fold
from placer.strategies.placement.solve import form_of


def solve(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The answer of `request.strategy`, judged. Raises InfeasibleError with what binds, UsageError for misuse."""
    if not isinstance(problem, PlacementProblem):
        raise UsageError(
            f"--strategy {request.strategy} was asked for of a {problem.format} problem, whose stages have variants; "
            "list schedulers place graphs of nodes with one cost each: leave --strategy out"
        )
    form = form_of(problem, request)
    started = time.perf_counter()
    found = listed(problem, form, request.strategy)
    seconds = time.perf_counter() - started
    if isinstance(found, Infeasible):
        raise InfeasibleError(found)
    return judged(problem, found, form, bound=0.0, seconds=seconds, notes=(f"placed by {request.strategy}",))


def listed(problem: PlacementProblem, form: Form, name: str) -> Placement | Infeasible:
    """The placement of the nodes by the method `name`, legal in its form; why there is none."""
    tasks, task_of = _tasks(problem, form)
    found = method(name)(tasks)
    if isinstance(found, Infeasible):
        return found
    placement = tuple(found[task] for task in task_of)
    complaints = violations(problem, placement, form)
    if complaints:
        return Infeasible(
            binding=f"{name} ends with a placement that does not hold: {'; '.join(complaints[:2])}",
            advice="Ask for another form, or another strategy",
        )
    return placement


def _tasks(problem: PlacementProblem, form: Form) -> tuple[TaskGraph, tuple[int, ...]]:
    """The tasks, and the task of each node."""
    if form in ("latency", "makespan"):
        return node_tasks(problem, form), tuple(range(len(problem.nodes)))
    return _by_class(problem, form)


def node_tasks(problem: PlacementProblem, form: Form) -> TaskGraph:
    """Every node as a task."""
    colours = {node.colour: index for index, node in reversed(list(enumerate(problem.nodes)))}
    nodes = problem.nodes
    return TaskGraph(
        names=tuple(f"node {node.name}" for node in nodes),
        seconds=tuple(_seconds(problem, node.accelerator, node.host, node.supported) for node in nodes),
        size=tuple(node.size for node in nodes),
        group=tuple(index if node.colour is None else colours[node.colour] for index, node in enumerate(nodes)),
        edges=tuple(
            Edge(source=index, target=reader, size=nodes[index].send)
            for index, readers in enumerate(problem.successors)
            for reader in sorted(readers)
        ),
        memory=_memory(problem),
        links=_links(problem),
        contiguous=form == "latency",
        lone=frozenset(range(problem.accelerators, problem.devices)) if form == "latency" else frozenset(),
    )


def _by_class(problem: PlacementProblem, form: Form) -> tuple[TaskGraph, tuple[int, ...]]:
    """Nodes that must share a device as one, those that come first first; what both send is summed."""
    folded = fold(problem, merge=False, ordered=form == "contiguous")
    sizes: dict[tuple[int, int], float] = {}
    for node, readers in enumerate(problem.successors):
        own = folded.labels[node]
        for other in {folded.labels[reader] for reader in readers} - {own}:
            ends = min(own, other), max(own, other)
            sizes[ends] = sizes.get(ends, 0.0) + problem.nodes[node].send
    first = {label: index for index, label in reversed(list(enumerate(folded.labels)))}
    return TaskGraph(
        names=tuple(f"node {problem.nodes[first[label]].name}" for label in range(folded.count)),
        seconds=tuple(
            _seconds(problem, folded.accelerator[label], folded.host[label], folded.supported[label])
            for label in range(folded.count)
        ),
        size=folded.size,
        group=tuple(range(folded.count)),
        edges=tuple(Edge(source=a, target=b, size=size) for (a, b), size in sorted(sizes.items())),
        memory=_memory(problem),
        links=_links(problem),
        contiguous=form == "contiguous",
    ), folded.labels


def _seconds(problem: PlacementProblem, accelerator: float, host: float, supported: bool) -> tuple[float, ...]:
    on = accelerator if supported else math.inf
    return (on,) * problem.accelerators + (host,) * problem.cpus


def _memory(problem: PlacementProblem) -> tuple[float, ...]:
    return (problem.memory,) * problem.accelerators + (math.inf,) * problem.cpus


def _links(problem: PlacementProblem) -> tuple[tuple[LinkCost, ...], ...]:
    """Once `send` for every end that is an accelerator."""
    ends = [1.0] * problem.accelerators + [0.0] * problem.cpus
    return tuple(tuple(LinkCost(0.0, a + b) for b in ends) for a in ends)
