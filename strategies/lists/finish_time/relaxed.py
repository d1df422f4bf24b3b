"""A graph on devices that do one op at a time, in whatever order: a lower bound of its finish time by CP-SAT.

    x[i, d] in {0, 1}      task i runs on device d, exactly one; groups together, memories kept
    begin[j] >= begin[i] + seconds[i, d] + sent[i, j] * (not the same device)        of each edge
    the intervals of a device do not overlap; minimise the last end

`sent` is the least that the edge takes between two different devices. Seconds are rounded down to whole units, so that
any schedule, first come first served too, is one of the program's, and its bound a bound of all.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from ortools.sat.python import cp_model

from placer.costs.communication.network import LinkCost
from placer.strategies.lists.task_graph import Edge, TaskGraph
from placer.strategies.placement.ilp import solver_of

# Whole units in the finish time that is known.
UNITS = 150_000
# Searches of different kinds at once, of which one proves and others find.
WORKERS = 3
# Larger programs (tasks times devices) are not begun.
MOST_CELLS = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The bound, and a device for every task where the program found any order in time."""

    bound: float
    placement: tuple[int, ...] | None = None


def simple_bound(tasks: TaskGraph) -> float:
    """The longest way by the fastest seconds of each task, and the whole work over all devices."""
    least = [min(own) for own in tasks.seconds]
    ways = list(least)
    for task in tasks.order:
        for edge in tasks.reads[task]:
            ways[task] = max(ways[task], ways[edge.source] + least[task])
    return max(max(ways), math.fsum(least) / len(tasks.devices))


def relaxed(tasks: TaskGraph, known: tuple[int, ...], value: float, *, effort: float, seconds: float | None) -> Relaxed:
    """What CP-SAT proves and finds within `effort` (deterministic seconds) from a placement of a known finish time."""
    bound = simple_bound(tasks)
    if tasks.count * len(tasks.devices) > MOST_CELLS or value <= bound or effort <= 0 or seconds == 0:
        return Relaxed(bound=bound)
    program = _Program(tasks, value)
    for row, home in zip(program.x, known, strict=True):
        for device, variable in enumerate(row):
            program.model.add_hint(variable, device == home)
    solver = solver_of(effort, seconds)
    # One worker is the same every time, and does more than many that take turns; where seconds end it, nothing is.
    solver.parameters.interleave_search = False
    solver.parameters.num_workers = 1 if seconds is None else max(WORKERS, os.cpu_count() or 1)
    status = solver.solve(program.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        proved = value if status == cp_model.INFEASIBLE else solver.best_objective_bound / program.scale
        return Relaxed(bound=max(bound, min(value, proved)))
    return Relaxed(
        bound=max(bound, min(value, solver.best_objective_bound / program.scale)),
        placement=tuple([solver.value(v) for v in row].index(1) for row in program.x),
    )


class _Program:
    """The integer program; times in units of 1 / `scale`."""

    def __init__(self, tasks: TaskGraph, value: float) -> None:
        self.model = cp_model.CpModel()
        self.scale = UNITS / value
        self._tasks, self._horizon = tasks, UNITS + 1
        self._same: dict[tuple[int, int], cp_model.IntVar] = {}
        self.x = [[self.model.new_bool_var("") for _ in tasks.devices] for _ in tasks.names]
        self._begin = [self.model.new_int_var(0, self._horizon, "") for _ in tasks.names]
        self._end = [self._end_of(task) for task in range(tasks.count)]
        self._placed()
        self._apart()
        for edge in tasks.edges:
            self._after(edge)
        finish = self.model.new_int_var(0, self._horizon, "")
        for end in self._end:
            self.model.add(finish >= end)
        for device in tasks.devices:
            self.model.add(finish >= sum(self._units(t, device) * self.x[t][device] for t in self._runs(device)))
        self.model.minimize(finish)

    def _units(self, task: int, device: int) -> int:
        return math.floor(self._tasks.seconds[task][device] * self.scale)

    def _runs(self, device: int) -> list[int]:
        return [t for t in range(self._tasks.count) if math.isfinite(self._tasks.seconds[t][device])]

    def _end_of(self, task: int) -> cp_model.LinearExpr:
        """By the device it runs on."""
        units = {d: self._units(task, d) for d in self._tasks.devices if math.isfinite(self._tasks.seconds[task][d])}
        if len(set(units.values())) == 1:
            return self._begin[task] + min(units.values())
        row = [self.x[task][device] for device in units]
        return self._begin[task] + cp_model.LinearExpr.weighted_sum(row, list(units.values()))

    def _placed(self) -> None:
        """One device each, that may run it; groups together; memories; of like devices the first for the longest."""
        tasks = self._tasks
        for task, row in enumerate(self.x):
            self.model.add_exactly_one(row)
            for device, variable in enumerate(row):
                if not math.isfinite(tasks.seconds[task][device]):
                    self.model.add(variable == 0)
        for own in tasks.groups.values():
            for other in own[1:]:
                for a, b in zip(self.x[own[0]], self.x[other], strict=True):
                    self.model.add(a == b)
        for device, memory in enumerate(tasks.memory):
            if math.fsum(tasks.size) > memory:
                held = sum(math.floor(size) * row[device] for size, row in zip(tasks.size, self.x, strict=True))
                self.model.add(held <= math.ceil(memory))
        if len({*zip(*tasks.seconds, strict=True)}) == 1 == len(set(tasks.memory)) == len(self._links()):
            longest = max(range(tasks.count), key=lambda task: tasks.seconds[task][0])
            self.model.add(self.x[longest][0] == 1)

    def _links(self) -> set[LinkCost]:
        tasks = self._tasks
        return {tasks.links[a][b] for a in tasks.devices for b in tasks.devices if a != b} or {LinkCost(0.0, 0.0)}

    def _apart(self) -> None:
        """A device does one task at a time."""
        for device in self._tasks.devices:
            self.model.add_no_overlap(
                [
                    self.model.new_optional_fixed_size_interval_var(self._begin[t], length, self.x[t][device], "")
                    for t in self._runs(device)
                    if (length := self._units(t, device))
                ]
            )

    def _after(self, edge: Edge) -> None:
        """A reader begins behind what it reads."""
        tasks = self._tasks
        ways = [tasks.transfer(edge, a, b) for a in tasks.devices for b in tasks.devices if a != b]
        sent = math.floor(min(ways, default=0.0) * self.scale)
        begin, end = self._begin[edge.target], self._end[edge.source]
        self.model.add(begin >= end)
        if sent:
            self.model.add(begin >= end + sent).only_enforce_if(~self._together(edge.source, edge.target))

    def _together(self, one: int, other: int) -> cp_model.IntVar:
        """1 only where both run on one device."""
        if (one, other) not in self._same:
            self._same[one, other] = together = self.model.new_bool_var("")
            for a, b in zip(self.x[one], self.x[other], strict=True):
                self.model.add_implication(a, b).only_enforce_if(together)
                self.model.add_bool_or(~a, ~b, together)
        return self._same[one, other]
