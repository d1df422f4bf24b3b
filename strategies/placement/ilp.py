"""What the integer programs of placement share (CP-SAT): one device per class, loads, memory, and how they are solved.

Over classes c, devices d (accelerators first), hyperedges P (placer.strategies.placement.contraction), in whole units:

    x[c, d] in {0, 1}, sum over d of x[c, d] = 1                           every class on one device   (assignment)
    load(d) = sum_c accelerator(c) x[c, d] + sum_P weight(P) y[P, d]                                   (load)
    y[P, d] >= x[a, d] - x[b, d]  for a, b neighbours around P             P is cut by accelerator d   (_cut)
    sum_c size(c) x[c, d] <= memory                                        accelerators                (limit_memory)

Costs are rounded down, so the solver's bound is a bound of the exact problem; its placement is evaluated exactly
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.devices import DeviceCounts

# Whole units in the largest time that matters, a known placement's. Not more: with terms of 2**33 and above CP-SAT 9.15
# lost optimal placements in presolve (test_large_costs_lose_no_placement); solver_of leaves that step out as well.
UNITS = 2.0**30
# Sizes that are no whole bytes are counted in these parts of one.
BYTE_PARTS = 2**20
WORKERS = 1

Row = list[cp_model.IntVar]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What an integer program is told: a placement of classes, its value, a bound (where it ends), and when to end.

    `effort` is deterministic seconds; `seconds`, if given, ends it by the clock.
    """

    hint: Sequence[int] | None
    upper: float
    bound: float
    effort: float
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The device of every class (accelerators first), None where none was found, and the bound (infinite: none is)."""

    devices: tuple[int, ...] | None
    bound: float


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A model with x[c, d] in it, row by class; `scale` whole units are one of the problem's time."""

    model: cp_model.CpModel
    folded: Folded
    scale: float
    x: list[Row]

    def load(self, inside: Row) -> cp_model.LinearExpr:
        """load(S) in whole units, rounded down term by term."""
        variables, costs = list(inside), self.units(self.folded.accelerator)
        for members, weight in self.folded.hyperedges:
            variables.append(_cut(self.model, [inside[index] for index in members]))
            costs.append(math.floor(weight * self.scale))
        return cp_model.LinearExpr.weighted_sum(variables, costs)

    def units(self, seconds: Sequence[float]) -> list[int]:
        """Times in whole units."""
        return [math.floor(each * self.scale) for each in seconds]


def assignment(folded: Folded, devices: DeviceCounts, upper: float) -> Assignment:
    """Sum over d of x[c, d] = 1; an unsupported class has no accelerator to choose."""
    model = cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in range(devices.accelerators + devices.cpus)] for _ in range(folded.count)]
    for row, fits in zip(x, folded.supported, strict=True):
        model.add_exactly_one(row)
        for variable in [] if fits else row[: devices.accelerators]:
            model.add(variable == 0)
    return Assignment(model=model, folded=folded, scale=scale_of(folded, upper), x=x)


def limit_memory(at: Assignment, devices: DeviceCounts) -> None:
    """The bytes of each accelerator's classes sum to at most its memory."""
    if math.fsum(at.folded.size) <= devices.memory:
        return
    parts = 1 if all(size == int(size) for size in at.folded.size) else BYTE_PARTS
    sizes = [math.floor(size * parts) for size in at.folded.size]
    for device in range(devices.accelerators):
        held = sum(size * row[device] for size, row in zip(sizes, at.x, strict=True))
        at.model.add(held <= math.floor(devices.memory * parts))


def _cut(model: cp_model.CpModel, members: Row) -> cp_model.IntVar:
    """y >= x[a] - x[b] around the hyperedge: 1 where some are inside and some are not."""
    cut = model.new_bool_var("")
    for a, b in zip(members, members[1:] + members[:1], strict=True):
        model.add_bool_or(~a, b, cut)
    return cut


def solved(at: Assignment, objective: cp_model.IntVar, known: Known, *, gap: int, spare: int = 0) -> Solved:
    """The least objective, of whose units `spare` are not the problem's; ends when `gap` units are left."""
    for row, device in zip(at.x, known.hint or (), strict=False):
        for other, variable in enumerate(row):
            at.model.add_hint(variable, other == device)
    at.model.minimize(objective)
    solver = solver_of(known.effort, known.seconds)
    solver.parameters.absolute_gap_limit = gap
    status = solver.solve(at.model)
    if status == cp_model.INFEASIBLE:
        return Solved(devices=None, bound=math.inf)
    bound = max(known.bound, (solver.best_objective_bound - spare) / at.scale)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(devices=None, bound=bound)
    return Solved(devices=tuple([solver.value(v) for v in row].index(1) for row in at.x), bound=bound)


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
    """Whole units in one of the problem's time."""
    most = most_load(folded, upper)
    return 2.0 ** math.floor(math.log2(UNITS / most)) if most > 0 else 1.0


def most_load(folded: Folded, upper: float) -> float:
    """No load that matters is larger, given the value of a placement (infinite: of none)."""
    sent = math.fsum(weight for _, weight in folded.hyperedges)
    return min(upper, math.fsum(folded.accelerator) + math.fsum(folded.host) + sent)
