"""Placement for latency: a chain of blocks, a bound from paths, and an integer program for the gap between them.

Every node runs once: an accelerator runs one contiguous set in one go, host nodes have a CPU each as soon as there is
one CPU (the published programs take any number of CPUs, whatever maxCPUs says).

The integer program (CP-SAT), over nodes v, accelerators d, the host h, and what `placement.ilp` says of the rest:

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
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from placer.placement.evaluator import finish_time
from placer.placement.problem import BoundedPlacement, Placement, PlacementProblem
from placer.strategies.engine.ideals import every_ideal
from placer.strategies.placement.contraction import Folded, along_orders, everything, fold, topological_orders
from placer.strategies.placement.devices import DeviceCounts, Incumbent, class_devices, device_counts, node_devices
from placer.strategies.placement.ideals import ideals_of
from placer.strategies.placement.ilp import Assignment, Known, Row, Solved, assignment, limit_memory, solved
from placer.strategies.placement.latency.chain_dp import SequentialProgram, best_sequence, single_steps
from placer.strategies.placement.latency.path_bound import path_bound
from placer.strategies.placement.limits import Effort, Limits, SpentError
from placer.strategies.placement.throughput.contiguous import CELLS

# Deterministic seconds of the integer program, and the variables beyond which it is not worth starting.
EFFORT = 4.0
MOST_CELLS = 4000
MOST_UNITS = 2**52
MOST_IDEALS = 40_000
MOST_PAIRS = 2_000_000_000


def latency(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best placement for the finish time of one sample, with a bound."""
    started = time.perf_counter()
    effort = Effort(Limits(pairs=MOST_PAIRS if limits.pairs is None else limits.pairs, seconds=limits.seconds))
    folded = fold(problem)
    best = Incumbent(form="latency")
    for placement in _candidates(problem, folded, effort):
        best = best.or_better(problem, placement)
    bound = path_bound(problem, best.value)
    note = f"{len(problem.nodes)} nodes, {folded.count} classes"
    if math.isinf(bound):
        return BoundedPlacement(placement=None, bound=bound, notes=(note,))
    if best.proved(bound):
        return BoundedPlacement(placement=best.placement, bound=best.value, notes=(note,))
    best, bound = _integer_program(problem, best, bound, limits.after(started))
    return BoundedPlacement(placement=best.placement, bound=min(bound, best.value), notes=(note,))


def _candidates(problem: PlacementProblem, folded: Folded, effort: Effort) -> Iterator[Placement]:
    """Placements to start from, each no worse to try than the others."""
    given = device_counts(problem, folded)
    if problem.cpus:
        yield (problem.accelerators,) * len(problem.nodes)
    for order in topological_orders(folded):
        yield node_devices(problem, folded, _filled(folded, given, order))
    upper = math.inf
    for bitsets in (along_orders(folded), every_ideal(folded.needs, min(MOST_IDEALS, CELLS // folded.count))):
        found = None if bitsets is None else _sequence(folded, given, bitsets, upper, effort)
        if found is not None:
            placement = node_devices(problem, folded, found)
            upper = min(upper, finish_time(problem, placement))
            yield placement


def _filled(folded: Folded, given: DeviceCounts, order: tuple[int, ...]) -> tuple[int, ...]:
    """The published greedy rule: fill one accelerator after the other along the order, the rest goes to the host."""
    devices = [given.accelerators] * folded.count
    device, room = -1, -1.0
    for index in order:
        if not folded.supported[index] or folded.size[index] > given.memory:
            room = -1.0  # a set that skipped this class would not be contiguous
            continue
        if folded.size[index] > room and device + 1 <= given.accelerators:
            device, room = device + 1, given.memory
        if device < given.accelerators:
            devices[index] = device
            room -= folded.size[index]
    return tuple(devices)


def _sequence(
    folded: Folded, given: DeviceCounts, bitsets: tuple[int, ...], upper: float, effort: Effort
) -> tuple[int, ...] | None:
    ideals = ideals_of(folded, bitsets)
    steps = single_steps(folded, ideals)
    highest = upper if math.isfinite(upper) else everything(folded)
    try:
        return best_sequence(
            SequentialProgram(folded=folded, ideals=ideals, devices=given, upper=highest, effort=effort, steps=steps)
        )
    except SpentError:
        return None


def _integer_program(
    problem: PlacementProblem, best: Incumbent, bound: float, limits: Limits
) -> tuple[Incumbent, float]:
    """The incumbent and the bound after the integer program, where it is small enough or nothing was found yet."""
    folded = fold(problem, merge=False, ordered=False)
    given = device_counts(problem, folded)
    cells = folded.count * (given.accelerators + 1)
    if (cells > MOST_CELLS and best.placement is not None) or limits.seconds == 0:
        return best, bound
    hint = () if best.placement is None else class_devices(problem, folded, best.placement)
    known = Known(
        hint=[min(device, given.accelerators) for device in hint], bound=bound, upper=best.value,
        effort=limits.solver_seconds(EFFORT), seconds=limits.seconds,
    )  # fmt: skip
    answer = _solve(problem, folded, given, known)
    if answer.devices is not None:
        best = best.or_better(problem, node_devices(problem, folded, answer.devices))
    return best, max(bound, min(answer.bound, best.value))


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """An assignment in time: starts of accelerators, ends of nodes."""

    at: Assignment
    problem: PlacementProblem
    start: Row
    done: Row


def _solve(problem: PlacementProblem, folded: Folded, devices: DeviceCounts, known: Known) -> Solved:
    """The best placement found, and the bound proved."""
    devices = replace(devices, cpus=min(1, devices.cpus))
    at = assignment(folded, devices, known.upper)
    spare = len(problem.nodes) + devices.accelerators + folded.count + len(folded.hyperedges)
    most = MOST_UNITS if math.isinf(known.upper) else math.ceil(known.upper * at.scale) + spare
    start = [at.model.new_int_var(0, most, "") for _ in range(devices.accelerators)]
    timed = _Timed(at=at, problem=problem, start=start, done=[at.model.new_int_var(0, most, "") for _ in problem.nodes])
    _host_times(timed, devices.accelerators)
    _set_times(timed)
    limit_memory(at, devices)
    finish = at.model.new_int_var(max(0, math.floor(known.bound * at.scale) - spare), most, "T")
    at.model.add_max_equality(finish, timed.done)
    return solved(at, finish, known, gap=2 * spare, spare=spare)


def _host_times(timed: _Timed, accelerators: int) -> None:
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


def _set_times(timed: _Timed) -> None:
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
