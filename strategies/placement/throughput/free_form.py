"""Free-form placement for throughput: s-t min cuts for two devices, an integer program (CP-SAT) for more.

Two devices a and b. For every share w in [0, 1] and every set S on a

    max(load_a(S), load_b(rest))  >=  w load_a(S) + (1-w) load_b(rest),

and the right side is modular plus cut hyperedges, so its minimum over S is an s-t min cut (`hypergraph_cut`).
The largest minimum over w is a bound, every minimiser a candidate; memory is left out of the bound and asked of the
candidates.

More devices, over what `placement.ilp` says of classes, devices and loads:

    minimise T
    load(d) <= T                                                          accelerators                  (_loads)
    sum_c host(c) x[c, d] <= T                                            CPUs                          (_loads)

The linear relaxation spreads every class over all devices and proves little, so the lower bound comes from a smaller
program: the classes whose accelerator time is at least t are `many`, CPUs can take only so many of them, hence some
accelerator holds at least q = ceil((many - those) / accelerators), and

    T >= min { load(S) : S holds at least q classes of that size },       one set S instead of one a device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from placer.placement.problem import BoundedPlacement, PlacementProblem
from placer.strategies.placement.contraction import Folded, fold, memory_can_bind
from placer.strategies.placement.devices import DeviceCounts, Incumbent, class_devices, device_counts, node_devices
from placer.strategies.placement.ilp import (
    Assignment,
    Known,
    Solved,
    assignment,
    limit_memory,
    most_load,
    scale_of,
    solved,
    solver_of,
)
from placer.strategies.placement.limits import Limits
from placer.strategies.placement.throughput.contiguous import compute_bound, start
from placer.strategies.placement.throughput.hypergraph_cut import HypergraphCut, cheapest_split

# Deterministic seconds of the integer program: some two minutes.
EFFORT = 60.0
SHARES = 24
# Deterministic seconds of CP-SAT for the bound of a crowd: a second or so each; how many of them are tried.
CROWD_EFFORT, CROWDS = 5.0, 4
CLOSE = 1e-7  # what rounding to whole units can leave between a bound and its own placement


@dataclass(frozen=True, kw_only=True)
class _Crowd:
    """At least `least` of the classes in `members` share an accelerator; the lightest so many take `compute`."""

    members: tuple[int, ...]
    least: int
    compute: float


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
        bound = max(bound, min(best.value, _crowd_bound(folded, given, best.value, limits.after(started).seconds)))
    if not best.proved(bound, CLOSE):
        hint = None if best.placement is None else class_devices(problem, folded, best.placement)
        left = limits.after(started)
        effort = left.solver_seconds(EFFORT)
        known = Known(hint=hint, bound=bound, upper=best.value, effort=effort, seconds=left.seconds)
        answer = _solve(folded, given, known)
        if answer.devices is not None:
            best = best.or_better(problem, node_devices(problem, folded, answer.devices))
        bound = min(answer.bound, best.value)
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


def _crowds(folded: Folded, devices: DeviceCounts, upper: float) -> tuple[_Crowd, ...]:
    """For each accelerator time t, who must share an accelerator in a placement below `upper`; heaviest first."""
    if not devices.accelerators:
        return ()
    order = sorted(
        (index for index in range(folded.count) if folded.supported[index] and folded.accelerator[index] > 0),
        key=lambda index: (-folded.accelerator[index], index),
    )
    found = []
    for count in range(1, len(order) + 1):
        members = order[:count]
        least = math.ceil((count - _hosted(folded, devices, members, upper)) / devices.accelerators)
        if least > 0:
            lightest = math.fsum(folded.accelerator[index] for index in members[-least:])
            found.append(_Crowd(members=tuple(members), least=least, compute=lightest))
    return tuple(sorted(found, key=lambda crowd: (-crowd.compute, crowd.least)))


def _hosted(folded: Folded, devices: DeviceCounts, members: Sequence[int], upper: float) -> int:
    """The most of `members` that CPUs can take when each works less than `upper`."""
    room, taken = devices.cpus * upper, 0
    for host in sorted(folded.host[index] for index in members):
        room -= host
        taken += room >= 0
    return taken


def _crowd_bound(folded: Folded, devices: DeviceCounts, upper: float, seconds: float | None) -> float:
    """The best bound of the few heaviest crowds, for every placement below `upper`; 0 where there is none. All of them
    together end within half of the seconds."""
    tried: dict[int, _Crowd] = {}
    for crowd in _crowds(folded, devices, upper):
        tried.setdefault(crowd.least, crowd)
    heaviest = list(tried.values())[:CROWDS]
    each = None if seconds is None else seconds / 2 / max(1, len(heaviest))
    return max((_least_load(folded, crowd, upper, each) for crowd in heaviest), default=0.0)


def _least_load(folded: Folded, crowd: _Crowd, upper: float, seconds: float | None) -> float:
    """min { load(S) : S holds at least `crowd.least` of `crowd.members` }, rounded down."""
    model = cp_model.CpModel()
    inside = [model.new_bool_var("") for _ in range(folded.count)]
    at = Assignment(model=model, folded=folded, scale=scale_of(folded, upper), x=[inside])
    model.add(sum(inside[index] for index in crowd.members) >= crowd.least)
    model.minimize(at.load(inside))
    solver = solver_of(CROWD_EFFORT, seconds)
    solver.solve(model)
    return max(0.0, solver.best_objective_bound) / at.scale


def _solve(folded: Folded, devices: DeviceCounts, known: Known) -> Solved:
    """The best placement found, and the bound proved."""
    at = assignment(folded, devices, known.upper)
    spare = len(folded.hyperedges) + folded.count
    least = max(0, math.floor(known.bound * at.scale) - spare)
    most = math.ceil(most_load(folded, known.upper) * at.scale)
    longest = at.model.new_int_var(least, max(least, most), "T")
    _loads(at, devices, longest)
    limit_memory(at, devices)
    # Accelerators are alike: the one that must hold the heaviest crowd is number 0.
    for crowd in _crowds(folded, devices, known.upper)[:1]:
        at.model.add(sum(at.x[index][0] for index in crowd.members) >= crowd.least)
    return solved(at, longest, known, gap=spare + 2)


def _loads(at: Assignment, devices: DeviceCounts, longest: cp_model.IntVar) -> None:
    """Every load is at most T."""
    for device in range(devices.accelerators):
        at.model.add(at.load([row[device] for row in at.x]) <= longest)
    for device in range(devices.accelerators, devices.accelerators + devices.cpus):
        hosts = at.units(at.folded.host)
        at.model.add(sum(cost * row[device] for cost, row in zip(hosts, at.x, strict=True)) <= longest)
