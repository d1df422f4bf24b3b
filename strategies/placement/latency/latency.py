"""Placement for latency: a chain of blocks, a bound from paths, and an integer program for the gap between them.

Every node runs once: an accelerator runs one contiguous set in one go, host nodes have a CPU each as soon as there is
one CPU (the published programs take any number of CPUs, whatever maxCPUs says).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from placer.placement.evaluator import finish_time
from placer.placement.legality import violations
from placer.placement.problem import BoundedPlacement, Placement, PlacementProblem
from placer.strategies.placement.contraction import Folded, fold
from placer.strategies.placement.ideals import every_ideal, ideals_of, prefixes
from placer.strategies.placement.latency.chain_dp import SequentialProgram, best_sequence, single_steps
from placer.strategies.placement.latency.ilp import solve_latency
from placer.strategies.placement.latency.path_bound import path_bound
from placer.strategies.placement.throughput.contiguous import machines
from placer.strategies.placement.throughput.free_form import Incumbent
from placer.strategies.placement.throughput.ideal_dp import DeviceCounts, Effort, SpentError
from placer.strategies.placement.throughput.rising_limits import CELLS, Limits, everything, topological_orders

# Deterministic seconds of the integer program, and the variables beyond which it is not worth starting.
EFFORT = 4.0
MOST_CELLS = 4000
MOST_IDEALS = 40_000
MOST_PAIRS = 2_000_000_000
CLOSE = 1e-9


def latency(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best placement for the finish time of one sample, with a bound."""
    started = time.perf_counter()
    until = None if limits.seconds is None else started + limits.seconds
    effort = Effort(budget=MOST_PAIRS if limits.pairs is None else limits.pairs, until=until)
    folded = fold(problem)
    best = Incumbent(placement=None, value=math.inf)
    for placement in _candidates(problem, folded, effort):
        best = _better(problem, best, placement)
    bound = path_bound(problem, best.value)
    note = f"{len(problem.nodes)} nodes, {folded.count} classes"
    if math.isinf(bound):
        return BoundedPlacement(placement=None, bound=bound, notes=(note,))
    if best.placement is not None and best.value - bound <= CLOSE * best.value:
        return BoundedPlacement(placement=best.placement, bound=best.value, notes=(note,))
    best, bound = _integer_program(problem, best, bound, limits.after(started))
    return BoundedPlacement(placement=best.placement, bound=min(bound, best.value), notes=(note,))


def _candidates(problem: PlacementProblem, folded: Folded, effort: Effort) -> Iterator[Placement]:
    """Placements to start from, each no worse to try than the others."""
    given = machines(problem, folded)
    if problem.cpus:
        yield (problem.accelerators,) * len(problem.nodes)
    for order in topological_orders(folded):
        yield _placed(problem, folded, _filled(folded, given, order))
    upper = math.inf
    for bitsets in (_along_orders(folded), every_ideal(folded, min(MOST_IDEALS, CELLS // folded.count))):
        found = None if bitsets is None else _sequence(folded, given, bitsets, upper, effort)
        if found is not None:
            placement = _placed(problem, folded, found)
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


def _along_orders(folded: Folded) -> tuple[int, ...]:
    """The ideals along a few topological orders."""
    return tuple(sorted({ideal for order in topological_orders(folded) for ideal in prefixes(order)}))


def _sequence(
    folded: Folded, given: DeviceCounts, bitsets: tuple[int, ...], upper: float, effort: Effort
) -> tuple[int, ...] | None:
    ideals = ideals_of(folded, bitsets)
    steps = single_steps(folded, ideals)
    highest = upper if math.isfinite(upper) else everything(folded)
    try:
        return best_sequence(
            SequentialProgram(folded=folded, ideals=ideals, machines=given, upper=highest, effort=effort, steps=steps)
        )
    except SpentError:
        return None


def _integer_program(
    problem: PlacementProblem, best: Incumbent, bound: float, limits: Limits
) -> tuple[Incumbent, float]:
    """The incumbent and the bound after the integer program, where it is small enough or nothing was found yet."""
    folded = fold(problem, merge=False, ordered=False)
    given = machines(problem, folded)
    cells = folded.count * (given.accelerators + 1)
    if (cells > MOST_CELLS and best.placement is not None) or limits.seconds == 0:
        return best, bound
    device = {} if best.placement is None else dict(zip(folded.labels, best.placement, strict=True))
    hint = [min(d, given.accelerators) for _, d in sorted(device.items())]
    effort = limits.effort(EFFORT)
    solved = solve_latency(
        problem, folded, given, hint=hint, floor=bound, upper=best.value, effort=effort, seconds=limits.seconds
    )
    if solved.devices is not None:
        best = _better(problem, best, _placed(problem, folded, solved.devices))
    return best, max(bound, min(solved.bound, best.value))


def _placed(problem: PlacementProblem, folded: Folded, devices: tuple[int, ...]) -> Placement:
    """The host is the problem's first CPU."""
    host = machines(problem, folded).accelerators
    return folded.placement(tuple(problem.accelerators if device == host else device for device in devices))


def _better(problem: PlacementProblem, best: Incumbent, placement: Placement) -> Incumbent:
    if violations(problem, placement, "latency"):
        return best
    value = finish_time(problem, placement)
    return Incumbent(placement=placement, value=value) if value < best.value else best
