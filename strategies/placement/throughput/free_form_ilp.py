"""Free-form placement for throughput as an integer program (CP-SAT), and a floor under it from one device alone.

Over classes c, accelerators and CPUs d, hyperedges P (placer.strategies.placement.contraction):

    minimise T
    x[c, d] in {0, 1}, sum over d of x[c, d] = 1                          every class on one device     (one_device)
    y[P, d] >= x[a, d] - x[b, d]  for a, b neighbours around P            P is cut by accelerator d     (_cut)
    sum_c accelerator(c) x[c, d] + sum_P weight(P) y[P, d] <= T           accelerators                  (_loads)
    sum_c host(c) x[c, d] <= T                                            CPUs                          (_loads)
    sum_c size(c) x[c, d] <= memory                                       accelerators                  (_memory)

Costs are rounded down to whole units, so the solver's bound is a bound of the exact problem; its placement is
evaluated exactly elsewhere. The linear relaxation spreads every class over all devices and proves little, so the floor
comes from a smaller program: the classes whose accelerator time is at least t are `many`, CPUs can take only so many of
them, hence some accelerator holds at least q = ceil((many - those) / accelerators), and

    T >= min { load(S) : S holds at least q classes of that size },       one set S instead of one a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.throughput.ideal_dp import DeviceCounts

# Whole units in the largest time that matters, a known placement's. Not more: with terms of 2**33 and above CP-SAT 9.15
# lost optimal placements in presolve (test_large_costs_lose_no_placement); solver_of leaves that step out as well.
UNITS = 2.0**30
# Sizes that are no whole bytes are counted in these parts of one.
BYTE_PARTS = 2**20
# Deterministic seconds of CP-SAT for the floor: a second or so each.
FLOOR_EFFORT = 5.0
FLOORS = 4
WORKERS = 1


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """At least `least` of the classes in `members` share an accelerator; the lightest so many take `compute`."""

    members: tuple[int, ...]
    least: int
    compute: float


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The device of every class (accelerators first), None where none was found, and the bound (infinite: none is)."""

    devices: tuple[int, ...] | None
    bound: float


def crowds(folded: Folded, machines: DeviceCounts, upper: float) -> tuple[Crowd, ...]:
    """For each accelerator time t, who must share an accelerator in a placement below `upper`; heaviest first."""
    if not machines.accelerators:
        return ()
    order = sorted(
        (index for index in range(folded.count) if folded.supported[index] and folded.accelerator[index] > 0),
        key=lambda index: (-folded.accelerator[index], index),
    )
    found = []
    for count in range(1, len(order) + 1):
        members = order[:count]
        least = math.ceil((count - _hosted(folded, machines, members, upper)) / machines.accelerators)
        if least > 0:
            lightest = math.fsum(folded.accelerator[index] for index in members[-least:])
            found.append(Crowd(members=tuple(members), least=least, compute=lightest))
    return tuple(sorted(found, key=lambda crowd: (-crowd.compute, crowd.least)))


def _hosted(folded: Folded, machines: DeviceCounts, members: Sequence[int], upper: float) -> int:
    """The most of `members` that CPUs can take when each works less than `upper`."""
    room, taken = machines.cpus * upper, 0
    for host in sorted(folded.host[index] for index in members):
        room -= host
        taken += room >= 0
    return taken


def shared_floor(folded: Folded, machines: DeviceCounts, upper: float) -> float:
    """The best floor of the few heaviest crowds; a bound for every placement below `upper`, 0 where there is none."""
    tried: dict[int, Crowd] = {}
    for crowd in crowds(folded, machines, upper):
        tried.setdefault(crowd.least, crowd)
    return max((_least_load(folded, crowd, upper) for crowd in list(tried.values())[:FLOORS]), default=0.0)


def _least_load(folded: Folded, crowd: Crowd, upper: float) -> float:
    """min { load(S) : S holds at least `crowd.least` of `crowd.members` }, rounded down."""
    model = cp_model.CpModel()
    scale = scale_of(folded, upper)
    inside = [model.new_bool_var("") for _ in range(folded.count)]
    model.add(sum(inside[index] for index in crowd.members) >= crowd.least)
    model.minimize(load_expression(model, folded, inside, scale))
    solver = solver_of(FLOOR_EFFORT, None)
    solver.solve(model)
    return max(0.0, solver.best_objective_bound) / scale


def solve_free(
    folded: Folded, machines: DeviceCounts, *, hint: Sequence[int] | None, floor: float, upper: float, effort: float,
    seconds: float | None,
) -> Solved:  # fmt: skip
    """The best placement within `effort` deterministic seconds (and `seconds`, if given); ends when `floor` is met."""
    model = cp_model.CpModel()
    scale = scale_of(folded, upper)
    x = one_device(model, folded, machines)
    most = min(upper, math.fsum(folded.host) + math.fsum(folded.accelerator) + _weights(folded))
    least = max(0, math.floor(floor * scale) - len(folded.hyperedges) - folded.count)
    longest = model.new_int_var(least, max(least, math.ceil(most * scale)), "T")
    _loads(model, folded, machines, x, longest, scale)
    limit_memory(model, folded, machines, x)
    _first_is_crowded(model, folded, machines, x, upper)
    for index, device in enumerate(hint or ()):
        for other, variable in enumerate(x[index]):
            model.add_hint(variable, other == device)
    model.minimize(longest)
    solver = solver_of(effort, seconds)
    solver.parameters.absolute_gap_limit = len(folded.hyperedges) + folded.count + 2
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Solved(devices=None, bound=math.inf)
    bound = max(floor, solver.best_objective_bound / scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(devices=None, bound=bound)
    return Solved(devices=tuple([solver.value(v) for v in row].index(1) for row in x), bound=bound)


Row = list[cp_model.IntVar]


def one_device(model: cp_model.CpModel, folded: Folded, machines: DeviceCounts) -> list[Row]:
    """sum over d of x[c, d] = 1; an unsupported class has no accelerator to choose."""
    x = [[model.new_bool_var("") for _ in range(machines.accelerators + machines.cpus)] for _ in range(folded.count)]
    for row, fits in zip(x, folded.supported, strict=True):
        model.add_exactly_one(row)
        for variable in [] if fits else row[: machines.accelerators]:
            model.add(variable == 0)
    return x


def _loads(
    model: cp_model.CpModel,
    folded: Folded,
    machines: DeviceCounts,
    x: list[Row],
    longest: cp_model.IntVar,
    scale: float,
) -> None:
    """Every load is at most T."""
    for device in range(machines.accelerators):
        model.add(load_expression(model, folded, [row[device] for row in x], scale) <= longest)
    for device in range(machines.accelerators, machines.accelerators + machines.cpus):
        hosts = [math.floor(host * scale) for host in folded.host]
        model.add(sum(cost * row[device] for cost, row in zip(hosts, x, strict=True)) <= longest)


def load_expression(model: cp_model.CpModel, folded: Folded, inside: Row, scale: float) -> cp_model.LinearExpr:
    """load(S) in whole units, rounded down term by term."""
    variables, costs = list(inside), [math.floor(seconds * scale) for seconds in folded.accelerator]
    for members, weight in folded.hyperedges:
        variables.append(_cut(model, [inside[index] for index in members]))
        costs.append(math.floor(weight * scale))
    return cp_model.LinearExpr.weighted_sum(variables, costs)


def _cut(model: cp_model.CpModel, members: Row) -> cp_model.IntVar:
    """y >= x[a] - x[b] around the hyperedge: 1 where some are inside and some are not."""
    cut = model.new_bool_var("")
    for a, b in zip(members, members[1:] + members[:1], strict=True):
        model.add_bool_or(~a, b, cut)
    return cut


def limit_memory(model: cp_model.CpModel, folded: Folded, machines: DeviceCounts, x: list[Row]) -> None:
    """The bytes of each accelerator's classes sum to at most its memory."""
    if math.fsum(folded.size) <= machines.memory:
        return
    scale = 1 if all(size == int(size) for size in folded.size) else BYTE_PARTS
    sizes = [math.floor(size * scale) for size in folded.size]
    for device in range(machines.accelerators):
        held = sum(size * row[device] for size, row in zip(sizes, x, strict=True))
        model.add(held <= math.floor(machines.memory * scale))


def _first_is_crowded(
    model: cp_model.CpModel, folded: Folded, machines: DeviceCounts, x: list[Row], upper: float
) -> None:
    """Accelerators are alike: the one that must hold the heaviest crowd is number 0."""
    for crowd in crowds(folded, machines, upper)[:1]:
        model.add(sum(x[index][0] for index in crowd.members) >= crowd.least)


def solver_of(effort: float, seconds: float | None) -> cp_model.CpSolver:
    """Interleaved, the search is the same whatever the number of workers, and the answer with it."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = WORKERS
    solver.parameters.interleave_search = True
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.max_deterministic_time = effort
    if seconds is not None:
        solver.parameters.max_time_in_seconds = seconds
    return solver


def scale_of(folded: Folded, upper: float) -> float:
    """Whole units in one of the problem's time, given the value of a placement (infinite: of none)."""
    total = math.fsum(folded.accelerator) + math.fsum(folded.host) + _weights(folded)
    most = min(upper, total)
    return 2.0 ** math.floor(math.log2(UNITS / most)) if most > 0 else 1.0


def _weights(folded: Folded) -> float:
    return math.fsum(weight for _, weight in folded.hyperedges)
