"""Placement for latency as an integer program (CP-SAT).

Over classes c, nodes v, accelerators d (and h, the host), hyperedges P (placer.strategies.placement.contraction):

    minimise T
    x[c, d] in {0, 1}, sum over d and h of x[c, d] = 1                     every class on one device   (_one_device)
    done[v] <= T                                                           for every node
    done[v] >= done[u] + host(v) + 1     if x[v, h]     for edges u -> v   a host node waits           (_host_times)
    start[d] >= done[u]                  if x[v, d], not x[u, d]           a set waits for its inputs  (_set_times)
    done[v] >= start[d] + load(d) + 1    if x[v, d]                        and is done at once         (_set_times)
    load(d) = sum_c accelerator(c) x[c, d] + sum_P weight(P) y[P, d],  y as in `free_form_ilp`
    sum_c size(c) x[c, d] <= memory                                        accelerators                (memory)

Times are whole units, rounded down. The 1 of every part is one unit: with it parts that take no time cannot wait for
each other in a circle either, so a set is always convex; the bound gives those units back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.throughput.free_form_ilp import (
    Row,
    Solved,
    limit_memory,
    load_expression,
    one_device,
    scale_of,
    solver_of,
)
from placer.strategies.placement.throughput.ideal_dp import DeviceCounts

MOST_UNITS = 2**52


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The model's variables: placement, starts of accelerators, ends of nodes, and the units in one of time."""

    model: cp_model.CpModel
    problem: PlacementProblem
    folded: Folded
    x: list[Row]
    start: Row
    done: Row
    scale: float


def solve_latency(
    problem: PlacementProblem, folded: Folded, machines: DeviceCounts, *, hint: Sequence[int] | None, floor: float,
    upper: float, effort: float, seconds: float | None,
) -> Solved:  # fmt: skip
    """The best placement within `effort` deterministic seconds (and `seconds`, if given); ends when `floor` is met."""
    model, scale = cp_model.CpModel(), scale_of(folded, upper)
    spare = len(problem.nodes) + machines.accelerators + folded.count + len(folded.hyperedges)
    most = MOST_UNITS if math.isinf(upper) else math.ceil(upper * scale) + spare
    host = DeviceCounts(accelerators=machines.accelerators, cpus=min(1, machines.cpus), memory=machines.memory)
    timed = Timed(
        model=model, problem=problem, folded=folded, x=one_device(model, folded, host), scale=scale,
        start=[model.new_int_var(0, most, "") for _ in range(machines.accelerators)],
        done=[model.new_int_var(0, most, "") for _ in problem.nodes],
    )  # fmt: skip
    _host_times(timed, machines.accelerators)
    _set_times(timed)
    limit_memory(model, folded, host, timed.x)
    finish = model.new_int_var(max(0, math.floor(floor * scale) - spare), most, "T")
    model.add_max_equality(finish, timed.done)
    for index, device in enumerate(hint or ()):
        for other, variable in enumerate(timed.x[index]):
            model.add_hint(variable, other == device)
    model.minimize(finish)
    solver = solver_of(effort, seconds)
    solver.parameters.absolute_gap_limit = 2 * spare
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Solved(devices=None, bound=math.inf)
    bound = max(floor, (solver.best_objective_bound - spare) / scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(devices=None, bound=bound)
    return Solved(devices=tuple([solver.value(v) for v in row].index(1) for row in timed.x), bound=bound)


def _host_times(timed: Timed, accelerators: int) -> None:
    """A host node starts when all it reads is done; a node is never done before what it reads."""
    for node, label in zip(range(len(timed.done)), timed.folded.labels, strict=True):
        for reader in sorted(timed.problem.successors[node]):
            timed.model.add(timed.done[reader] >= timed.done[node])
        if len(timed.x[label]) > accelerators:
            cost = math.floor(timed.problem.nodes[node].host * timed.scale) + 1
            hosted = timed.x[label][accelerators]
            timed.model.add(timed.done[node] >= cost).only_enforce_if(hosted)
    for source, target in timed.problem.edges:
        row = timed.x[timed.folded.labels[target]]
        if len(row) > accelerators:
            cost = math.floor(timed.problem.nodes[target].host * timed.scale) + 1
            timed.model.add(timed.done[target] >= timed.done[source] + cost).only_enforce_if(row[accelerators])


def _set_times(timed: Timed) -> None:
    """An accelerator starts when all its set reads is done, and its set is done when everything is."""
    labels = timed.folded.labels
    for device, start in enumerate(timed.start):
        inside = [row[device] for row in timed.x]
        load = load_expression(timed.model, timed.folded, inside, timed.scale)
        for source, target in timed.problem.edges:
            if labels[source] != labels[target]:
                ends = (inside[labels[target]], ~inside[labels[source]])
                timed.model.add(start >= timed.done[source]).only_enforce_if(*ends)
        for node, label in enumerate(labels):
            timed.model.add(timed.done[node] >= start + load + 1).only_enforce_if(inside[label])
