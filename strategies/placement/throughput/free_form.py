"""Free-form placement for throughput: s-t min cuts for two devices, an integer program for more.

Two devices a and b. For every share w in [0, 1] and every set S on a

    max(load_a(S), load_b(rest))  >=  w load_a(S) + (1-w) load_b(rest),

and the right side is modular plus cut hyperedges, so its minimum over S is an s-t min cut (`hypergraph_cut`).
The largest minimum over w is a bound, every minimiser a candidate; memory is left out of the bound and asked of the
candidates.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from placer.placement.evaluator import largest_load
from placer.placement.legality import violations
from placer.placement.problem import BoundedPlacement, Placement, PlacementProblem
from placer.strategies.placement.contraction import Folded, fold, memory_can_bind
from placer.strategies.placement.throughput.contiguous import chain_placement, machines
from placer.strategies.placement.throughput.free_form_ilp import shared_floor, solve_free
from placer.strategies.placement.throughput.hypergraph_cut import HypergraphCut, cheapest_split
from placer.strategies.placement.throughput.ideal_dp import DeviceCounts
from placer.strategies.placement.throughput.rising_limits import Limits, along_orders, floor

# Deterministic seconds of the integer program: some two minutes.
EFFORT = 60.0
SHARES = 24
CLOSE = 1e-7  # what rounding to whole units can leave between a bound and its own placement


@dataclass(frozen=True, kw_only=True)
class Incumbent:
    """The best legal placement so far, None while there is none, and its value."""

    placement: Placement | None
    value: float


def free_form(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best placement for throughput without the demand of contiguity, with a bound."""
    started = time.perf_counter()
    folded = _folded(problem)
    given = machines(problem, folded)
    best = _better(problem, Incumbent(placement=None, value=math.inf), _start(problem))
    bound = floor(folded, given)
    if given.accelerators + given.cpus == 2 and given.accelerators:
        bound, best = _two_devices(problem, folded, given, bound, best)
    if not _proved(bound, best) and best.placement is not None:
        bound = max(bound, min(best.value, shared_floor(folded, given, best.value)))
    if _proved(bound, best):
        return _found(problem, folded, best, bound)
    hint = None if best.placement is None else _of_classes(problem, folded, given, best.placement)
    left = limits.after(started)
    solved = solve_free(
        folded, given, hint=hint, floor=bound, upper=best.value, effort=left.effort(EFFORT), seconds=left.seconds
    )
    if solved.devices is not None:
        best = _better(problem, best, _of_nodes(problem, folded, given, solved.devices))
    return _found(problem, folded, best, min(solved.bound, best.value))


def weighed_split(folded: Folded, given: DeviceCounts, share: float) -> HypergraphCut:
    """min over S of share load(S) + (1-share) load of the rest on the second device."""
    first = _priced(folded, share)
    if given.cpus:
        second = tuple((1 - share) * host for host in folded.host)
        return cheapest_split(first, second, [(members, share * weight) for members, weight in folded.hyperedges])
    return cheapest_split(first, _priced(folded, 1 - share), folded.hyperedges)


def _priced(folded: Folded, share: float) -> tuple[float, ...]:
    """What each class costs on an accelerator whose load counts `share`."""
    return tuple(
        share * seconds if fits else math.inf
        for seconds, fits in zip(folded.accelerator, folded.supported, strict=True)
    )


def _two_devices(
    problem: PlacementProblem, folded: Folded, given: DeviceCounts, bound: float, best: Incumbent
) -> tuple[float, Incumbent]:
    """The bound and the incumbent after s-t min cuts; the shares close in on the largest minimum (it is concave)."""
    if not all(folded.supported) and not given.cpus:
        return bound, best
    low, high = 0.0, 1.0
    for _ in range(SHARES):
        third = (high - low) / 3
        values = []
        for share in (low + third, high - third):
            split = weighed_split(folded, given, share)
            values.append(split.cost)
            devices = tuple(0 if index in split.inside else 1 for index in range(folded.count))
            best = _better(problem, best, _of_nodes(problem, folded, given, devices))
        low, high = (low + third, high) if values[0] < values[1] else (low, high - third)
        bound = max(bound, *values)
    return min(bound, best.value), best


def _folded(problem: PlacementProblem) -> Folded:
    """Merged where the bytes of what is merged cannot decide."""
    merged = fold(problem, ordered=False)
    exact = not memory_can_bind(problem) or merged.size == fold(problem, bytes_of_merged="free", ordered=False).size
    return merged if exact else fold(problem, merge=False, ordered=False)


def _start(problem: PlacementProblem) -> Placement | None:
    """The best contiguous placement along a few orders, if there is one."""
    folded = fold(problem)
    chain = along_orders(folded, machines(problem, folded))
    return None if chain is None else chain_placement(problem, folded, chain)


def _better(problem: PlacementProblem, best: Incumbent, placement: Placement | None) -> Incumbent:
    if placement is None or violations(problem, placement, "free"):
        return best
    value = largest_load(problem, placement)
    return Incumbent(placement=placement, value=value) if value < best.value else best


def _proved(bound: float, best: Incumbent) -> bool:
    return best.placement is not None and best.value - bound <= CLOSE * best.value


def _of_nodes(problem: PlacementProblem, folded: Folded, given: DeviceCounts, devices: tuple[int, ...]) -> Placement:
    """Device numbers of the problem: its CPUs come after all its accelerators."""
    spare = problem.accelerators - given.accelerators
    return folded.placement(tuple(d if d < given.accelerators else d + spare for d in devices))


def _of_classes(
    problem: PlacementProblem, folded: Folded, given: DeviceCounts, placement: Placement
) -> tuple[int, ...]:
    spare = problem.accelerators - given.accelerators
    device = dict(zip(folded.labels, placement, strict=True))
    return tuple(d if d < given.accelerators else d - spare for _, d in sorted(device.items()))


def _found(problem: PlacementProblem, folded: Folded, best: Incumbent, bound: float) -> BoundedPlacement:
    note = f"{len(problem.nodes)} nodes, {folded.count} classes"
    return BoundedPlacement(placement=best.placement, bound=bound, notes=(note,))
