"""Tasks on devices that do one at a time, in whatever order or first come first served, as a program for CP-SAT.

    x[i, d] in {0, 1}      task i runs on device d, exactly one; groups together, memories kept
    begin[j] >= begin[i] + seconds[i, d] + lag + sent * (not the same device)        of each way
    begin[i] >= head[i], finish >= begin[i] + tail[i]                                 (see `windows`)
    the intervals of a device do not overlap; minimise the finish

    queued: arrival[j] = the latest of its ways; of two tasks of a device that know their arrivals the one that arrives
    first begins first, but for `ROUNDED` units

Seconds are rounded down to whole units. Any schedule that is no longer than `value`, its begins rounded down too, is
one of the program's: a bound of the program is a bound of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ortools.sat.python import cp_model

from placer.costs.communication.network import LinkCost
from placer.strategies.lists.finish_time.contraction import Part, Way
from placer.strategies.lists.schedule import MEMORY_ROUNDING
from placer.strategies.lists.task_graph import TaskGraph
from placer.strategies.placement.ilp import solver_of

# Whole units in the finish time that is known.
UNITS = 150_000
# Units of memory of all tasks; of larger terms see `UNITS` in `placer.strategies.placement.ilp`.
MOST_HELD = 2.0**30
# An arrival is the sum of four rounded numbers.
ROUNDED = 4


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Of each task the least seconds before it begins, and the least from its begin to the finish."""

    heads: list[float]
    tails: list[float]

    @property
    def bound(self) -> float:
        """Of the finish time."""
        return max(map(math.fsum, zip(self.heads, self.tails, strict=True)), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The bound (infinite: nothing is as short as the value), the devices of the tasks, the deterministic seconds."""

    bound: float
    homes: dict[int, int] | None
    effort: float


class Program:
    """The integer program of a part; times in units of 1 / `scale`. `last`: its begin is the finish."""

    def __init__(
        self, tasks: TaskGraph, part: Part, value: float, windows: Windows, *, last: int | None = None
    ) -> None:
        self.model = cp_model.CpModel()
        self.scale = UNITS / value
        self._tasks, self._part, self._horizon = tasks, part, UNITS + 1
        self._same: dict[tuple[int, int], cp_model.IntVar] = {}
        self.x = {task: [self.model.new_bool_var("") for _ in tasks.devices] for task in part.tasks}
        self._begin = {task: self._time(windows.heads[task]) for task in part.tasks}
        self._end = {task: self._end_of(task) for task in part.tasks}
        self._arrives: dict[int, list[cp_model.LinearExprT]] = {task: [] for task in part.tasks}
        self._placed()
        self._apart()
        for way in part.ways:
            self._after(way)
        self._finish(windows.tails, last)

    def queue(self, later: Sequence[int], long: Sequence[int]) -> None:
        """First come first served of pairs with a long task; `later[i]` has the bits of what waits for i."""
        model, exact = self.model, [task for task in self._part.tasks if task in self._part.exact]
        arrival = {}
        for task in exact:
            arrival[task] = model.new_int_var(0, self._horizon, "")
            model.add_max_equality(arrival[task], self._arrives[task] or [0])
            model.add(self._begin[task] >= arrival[task])
        longest = set(long)
        for one, other in combinations(exact, 2):
            if (one in longest or other in longest) and not (later[one] >> other | later[other] >> one) & 1:
                first, together = model.new_bool_var(""), self._together(one, other)
                for a, b, asked in ((one, other, first), (other, one, ~first)):
                    model.add(arrival[a] <= arrival[b] + ROUNDED).only_enforce_if(asked, together)
                    model.add(self._begin[b] >= self._end[a]).only_enforce_if(asked, together)

    def hint(self, placement: Sequence[int]) -> None:
        """A placement to begin from."""
        for task, row in self.x.items():
            for device, variable in enumerate(row):
                self.model.add_hint(variable, device == placement[task])

    def solve(self, effort: float, seconds: float | None, workers: int = 1) -> Proof:
        """What is proved and found within deterministic seconds, and seconds; one worker is the same every time."""
        solver = solver_of(effort, seconds)
        # One does more than many that take turns; where seconds end it, nothing is the same.
        solver.parameters.interleave_search = False
        solver.parameters.num_workers = workers
        status, homes = solver.solve(self.model), None
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            homes = {task: [solver.value(v) for v in row].index(1) for task, row in self.x.items()}
        bound = math.inf if status == cp_model.INFEASIBLE else max(0.0, solver.best_objective_bound / self.scale)
        return Proof(bound=bound, homes=homes, effort=solver.response_proto.deterministic_time)

    def _time(self, least: float) -> cp_model.IntVar:
        return self.model.new_int_var(min(self._horizon, math.floor(least * self.scale)), self._horizon, "")

    def _units(self, task: int, device: int) -> int:
        return math.floor(self._tasks.seconds[task][device] * self.scale)

    def _runs(self, device: int) -> list[int]:
        return [t for t in self._part.tasks if math.isfinite(self._tasks.seconds[t][device])]

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
        for task, row in self.x.items():
            self.model.add_exactly_one(row)
            for device, variable in enumerate(row):
                if not math.isfinite(tasks.seconds[task][device]):
                    self.model.add(variable == 0)
        for own in tasks.groups.values():
            here = [task for task in own if task in self.x]
            for other in here[1:]:
                for a, b in zip(self.x[here[0]], self.x[other], strict=True):
                    self.model.add(a == b)
        for device, memory in enumerate(tasks.memory):
            if math.fsum(tasks.size) > memory:
                self._fits(device, memory)
        if len({*zip(*tasks.seconds, strict=True)}) == 1 == len(set(tasks.memory)) == len(self._links()):
            longest = max(self.x, key=lambda task: tasks.seconds[task][0])
            self.model.add(self.x[longest][0] == 1)

    def _fits(self, device: int, memory: float) -> None:
        """What a device holds, in whole bytes or, of very many and of parts of one, in shares of all."""
        room, held_by_all = memory * (1 + MEMORY_ROUNDING), math.fsum(self._tasks.size)
        whole = held_by_all <= MOST_HELD and all(size == math.floor(size) for size in self._tasks.size)
        unit = 1.0 if whole else held_by_all / MOST_HELD
        held = sum(math.floor(self._tasks.size[task] / unit) * row[device] for task, row in self.x.items())
        self.model.add(held <= math.floor(room / unit))

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

    def _after(self, way: Way) -> None:
        """A reader begins behind what it reads."""
        ready = self._end[way.source] + math.floor(way.lag * self.scale)
        self.model.add(self._begin[way.target] >= ready)
        sent = math.floor(way.sent * self.scale)
        if sent:
            together = self._together(way.source, way.target)
            self.model.add(self._begin[way.target] >= ready + sent).only_enforce_if(~together)
            ready = ready + sent * (1 - together)
        self._arrives[way.target].append(ready)

    def _together(self, one: int, other: int) -> cp_model.IntVar:
        """1 where both run on one device, else 0."""
        pair = (min(one, other), max(one, other))
        if pair not in self._same:
            self._same[pair] = together = self.model.new_bool_var("")
            for a, b in zip(self.x[one], self.x[other], strict=True):
                self.model.add_implication(a, b).only_enforce_if(together)
                self.model.add_bool_or(~a, ~b, together)
        return self._same[pair]

    def _finish(self, tails: Sequence[float], last: int | None) -> None:
        """Behind every end and tail, and behind the whole work of each device; or the begin of the last task."""
        finish = self._time(0.0) if last is None else self._begin[last]
        for task, end in self._end.items():
            if last is None:
                self.model.add(finish >= end)
                self.model.add(finish >= self._begin[task] + min(self._horizon, math.floor(tails[task] * self.scale)))
        for device in self._tasks.devices:
            own = [self._units(t, device) * self.x[t][device] for t in self._runs(device) if t != last]
            self.model.add(finish >= sum(own))
        self.model.minimize(finish)
