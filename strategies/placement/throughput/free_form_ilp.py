"""Free-form placement for throughput as an integer program (CP-SAT), and a lower bound from one device alone.

Over what `placement.ilp` says of classes, devices and loads:

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
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.devices import DeviceCounts
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

# Deterministic seconds of CP-SAT for the bound of a crowd: a second or so each; how many of them are tried.
CROWD_EFFORT = 5.0
CROWDS = 4


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """At least `least` of the classes in `members` share an accelerator; the lightest so many take `compute`."""

    members: tuple[int, ...]
    least: int
    compute: float


def crowds(folded: Folded, devices: DeviceCounts, upper: float) -> tuple[Crowd, ...]:
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
            found.append(Crowd(members=tuple(members), least=least, compute=lightest))
    return tuple(sorted(found, key=lambda crowd: (-crowd.compute, crowd.least)))


def _hosted(folded: Folded, devices: DeviceCounts, members: Sequence[int], upper: float) -> int:
    """The most of `members` that CPUs can take when each works less than `upper`."""
    room, taken = devices.cpus * upper, 0
    for host in sorted(folded.host[index] for index in members):
        room -= host
        taken += room >= 0
    return taken


def crowd_bound(folded: Folded, devices: DeviceCounts, upper: float) -> float:
    """The best bound of the few heaviest crowds, for every placement below `upper`; 0 where there is none."""
    tried: dict[int, Crowd] = {}
    for crowd in crowds(folded, devices, upper):
        tried.setdefault(crowd.least, crowd)
    return max((_least_load(folded, crowd, upper) for crowd in list(tried.values())[:CROWDS]), default=0.0)


def _least_load(folded: Folded, crowd: Crowd, upper: float) -> float:
    """min { load(S) : S holds at least `crowd.least` of `crowd.members` }, rounded down."""
    model = cp_model.CpModel()
    inside = [model.new_bool_var("") for _ in range(folded.count)]
    at = Assignment(model=model, folded=folded, scale=scale_of(folded, upper), x=[inside])
    model.add(sum(inside[index] for index in crowd.members) >= crowd.least)
    model.minimize(at.load(inside))
    solver = solver_of(CROWD_EFFORT, None)
    solver.solve(model)
    return max(0.0, solver.best_objective_bound) / at.scale


def solve_free(folded: Folded, devices: DeviceCounts, known: Known) -> Solved:
    """The best placement found, and the bound proved."""
    at = assignment(folded, devices, known.upper)
    spare = len(folded.hyperedges) + folded.count
    least = max(0, math.floor(known.bound * at.scale) - spare)
    most = math.ceil(most_load(folded, known.upper) * at.scale)
    longest = at.model.new_int_var(least, max(least, most), "T")
    _loads(at, devices, longest)
    limit_memory(at, devices)
    # Accelerators are alike: the one that must hold the heaviest crowd is number 0.
    for crowd in crowds(folded, devices, known.upper)[:1]:
        at.model.add(sum(at.x[index][0] for index in crowd.members) >= crowd.least)
    return solved(at, longest, known, gap=spare + 2)


def _loads(at: Assignment, devices: DeviceCounts, longest: cp_model.IntVar) -> None:
    """Every load is at most T."""
    for device in range(devices.accelerators):
        at.model.add(at.load([row[device] for row in at.x]) <= longest)
    for device in range(devices.accelerators, devices.accelerators + devices.cpus):
        hosts = at.units(at.folded.host)
        at.model.add(sum(cost * row[device] for cost, row in zip(hosts, at.x, strict=True)) <= longest)
