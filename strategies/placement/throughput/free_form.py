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

from placer.placement.problem import BoundedPlacement, PlacementProblem
from placer.strategies.placement.contraction import Folded, fold, memory_can_bind
from placer.strategies.placement.devices import DeviceCounts, Incumbent, class_devices, device_counts, node_devices
from placer.strategies.placement.ilp import Known
from placer.strategies.placement.limits import Limits
from placer.strategies.placement.throughput.contiguous import compute_bound, start
from placer.strategies.placement.throughput.free_form_ilp import crowd_bound, solve_free
from placer.strategies.placement.throughput.hypergraph_cut import HypergraphCut, cheapest_split

# Deterministic seconds of the integer program: some two minutes.
EFFORT = 60.0
SHARES = 24
CLOSE = 1e-7  # what rounding to whole units can leave between a bound and its own placement


def free_form(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best placement for throughput without the demand of contiguity, with a bound."""
    started = time.perf_counter()
    folded = _folded(problem)
    given = device_counts(problem, folded)
    best = Incumbent(form="free").or_better(problem, start(problem))
    bound = compute_bound(folded, given)
    if given.accelerators + given.cpus == 2 and given.accelerators:
        bound, best = _two_devices(problem, folded, given, bound, best)
    if not best.proved(bound, CLOSE) and best.placement is not None:
        bound = max(bound, min(best.value, crowd_bound(folded, given, best.value)))
    if not best.proved(bound, CLOSE):
        hint = None if best.placement is None else class_devices(problem, folded, best.placement)
        left = limits.after(started)
        effort = left.solver_seconds(EFFORT)
        known = Known(hint=hint, bound=bound, upper=best.value, effort=effort, seconds=left.seconds)
        solved = solve_free(folded, given, known)
        if solved.devices is not None:
            best = best.or_better(problem, node_devices(problem, folded, solved.devices))
        bound = min(solved.bound, best.value)
    note = f"{len(problem.nodes)} nodes, {folded.count} classes"
    return BoundedPlacement(placement=best.placement, bound=bound, notes=(note,))


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
            best = best.or_better(problem, node_devices(problem, folded, devices))
        low, high = (low + third, high) if values[0] < values[1] else (low, high - third)
        bound = max(bound, *values)
    return min(bound, best.value), best


def _folded(problem: PlacementProblem) -> Folded:
    """Merged where the bytes of what is merged cannot decide."""
    merged = fold(problem, ordered=False)
    exact = not memory_can_bind(problem) or merged.size == fold(problem, bytes_of_merged="free", ordered=False).size
    return merged if exact else fold(problem, merge=False, ordered=False)
