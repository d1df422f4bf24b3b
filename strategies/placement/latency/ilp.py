"""Placement for latency as an integer program (CP-SAT).

Over nodes v, accelerators d and the host h, and what `placement.ilp` says of classes, devices and loads:

    minimise T
    done[v] <= T                                                           for every node
    done[v] >= done[u] + host(v) + 1     if x[v, h]     for edges u -> v   a host node waits           (_host_times)
    start[d] >= done[u]                  if x[v, d], not x[u, d]           a set waits for its inputs  (_set_times)
    done[v] >= start[d] + load(d) + 1    if x[v, d]                        and is done at once         (_set_times)

Times are whole units, rounded down. The 1 of every part is one unit: with it parts that take no time cannot wait for
each other in a circle either, so a set is always convex; the bound gives those units back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.devices import DeviceCounts
from placer.strategies.placement.ilp import Assignment, Known, Row, Solved, assignment, limit_memory, solved

MOST_UNITS = 2**52


@dataclass(frozen=True, kw_only=True)
class Timed:
    """An assignment in time: starts of accelerators, ends of nodes."""

    at: Assignment
    problem: PlacementProblem
    start: Row
    done: Row


def solve_latency(problem: PlacementProblem, folded: Folded, devices: DeviceCounts, known: Known) -> Solved:
    """The best placement found, and the bound proved."""
    devices = replace(devices, cpus=min(1, devices.cpus))
    at = assignment(folded, devices, known.upper)
    spare = len(problem.nodes) + devices.accelerators + folded.count + len(folded.hyperedges)
    most = MOST_UNITS if math.isinf(known.upper) else math.ceil(known.upper * at.scale) + spare
    start = [at.model.new_int_var(0, most, "") for _ in range(devices.accelerators)]
    timed = Timed(at=at, problem=problem, start=start, done=[at.model.new_int_var(0, most, "") for _ in problem.nodes])
    _host_times(timed, devices.accelerators)
    _set_times(timed)
    limit_memory(at, devices)
    finish = at.model.new_int_var(max(0, math.floor(known.bound * at.scale) - spare), most, "T")
    at.model.add_max_equality(finish, timed.done)
    return solved(at, finish, known, gap=2 * spare, spare=spare)


def _host_times(timed: Timed, accelerators: int) -> None:
    """A host node starts when all it reads is done; a node is never done before what it reads."""
    model, x, labels = timed.at.model, timed.at.x, timed.at.folded.labels
    costs = [cost + 1 for cost in timed.at.units([node.host for node in timed.problem.nodes])]
    for node, label in enumerate(labels):
        for reader in sorted(timed.problem.successors[node]):
            model.add(timed.done[reader] >= timed.done[node])
        if len(x[label]) > accelerators:
            model.add(timed.done[node] >= costs[node]).only_enforce_if(x[label][accelerators])
    for source, target in timed.problem.edges:
        row = x[labels[target]]
        if len(row) > accelerators:
            model.add(timed.done[target] >= timed.done[source] + costs[target]).only_enforce_if(row[accelerators])


def _set_times(timed: Timed) -> None:
    """An accelerator starts when all its set reads is done, and its set is done when everything is."""
    model, labels = timed.at.model, timed.at.folded.labels
    for device, start in enumerate(timed.start):
        inside = [row[device] for row in timed.at.x]
        load = timed.at.load(inside)
        for source, target in timed.problem.edges:
            if labels[source] != labels[target]:
                ends = (inside[labels[target]], ~inside[labels[source]])
                model.add(start >= timed.done[source]).only_enforce_if(*ends)
        for node, label in enumerate(labels):
            model.add(timed.done[node] >= start + load + 1).only_enforce_if(inside[label])
