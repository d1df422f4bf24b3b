"""Placement for latency: a chain of blocks, a bound from paths, and an integer program for the gap between them.

Every node runs once: an accelerator runs one contiguous set in one go, host nodes have a CPU each as soon as there is
one CPU (the published programs take any number of CPUs, whatever maxCPUs says).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from placer.placement.evaluator import finish_time
from placer.placement.problem import BoundedPlacement, Placement, PlacementProblem
from placer.strategies.engine.ideals import every_ideal
from placer.strategies.placement.contraction import Folded, along_orders, everything, fold, topological_orders
from placer.strategies.placement.devices import DeviceCounts, Incumbent, class_devices, device_counts, node_devices
from placer.strategies.placement.ideals import ideals_of
from placer.strategies.placement.ilp import Known
from placer.strategies.placement.latency.chain_dp import SequentialProgram, best_sequence, single_steps
from placer.strategies.placement.latency.ilp import solve_latency
from placer.strategies.placement.latency.path_bound import path_bound
from placer.strategies.placement.limits import Effort, Limits, SpentError
from placer.strategies.placement.throughput.contiguous import CELLS

# Deterministic seconds of the integer program, and the variables beyond which it is not worth starting.
EFFORT = 4.0
MOST_CELLS = 4000
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
    solved = solve_latency(problem, folded, given, known)
    if solved.devices is not None:
        best = best.or_better(problem, node_devices(problem, folded, solved.devices))
    return best, max(bound, min(solved.bound, best.value))
