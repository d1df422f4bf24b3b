"""Aceso's problem solved: microbatch, stages and their devices, per op degrees, algorithm and recomputation.

    minimise (n - 1) max_i time_i + sum_i time_i    (formula: `published_planners.aceso`), memory_i <= limit

For each microbatch and each division of the devices over stages a floor is proved first (`floor_table`); they are
searched in the order of their floors, while a floor lies below the best plan: the fastest stage of every range of ops
(`stage_table`), then the cuts (`best_cuts`). The least floor of all is the bound. The budget counts tables
times ops.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace

import numpy as np

from placer.errors import Infeasible
from placer.placement.published_planners.aceso import AcesoPlan, AcesoProblem, step_of
from placer.strategies.engine.arrays import Flags, Floats
from placer.strategies.engine.chain_cuts import best_cuts, least_maximum, least_sum, possible_starts
from placer.strategies.placement.aceso.bound import floor_table
from placer.strategies.placement.aceso.op_choices import OpSpace, space
from placer.strategies.placement.aceso.stage_dp import TILTS, Grid, Table, grid_of, stage_table, traced

# Plans are looked for within these multiples of the least floor, one after the other: the nearer, the fewer stages.
ABOVE_FLOOR = (1.06, 1.15, 1.3, 1.6, 2.5, 10.0, 1000.0)
# A shape whose work alone takes this much longer than the least floor needs no better floor of its own.
FAR = 1.3
# Cuts are tried where they send little: within this part of the slowest stage of the least of so many ops around.
LITTLE, AROUND = 0.02, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoSolution:
    """A plan, its value by the evaluator, the proved bound (both milliseconds), the seconds and tables it took."""

    plan: AcesoPlan
    milliseconds: float
    bound: float
    seconds: float
    tables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """A microbatch and the devices of each stage, with its floor."""

    microbatch: int
    devices: tuple[int, ...]
    floor: float


def solve_aceso(problem: AcesoProblem, *, budget: int = 3000) -> AcesoSolution | Infeasible:
    """The best plan found, and the bound of every plan; `budget` counts tables of stages times ops."""
    started = time.perf_counter()
    search = _AcesoSearch(problem, budget)
    shapes = sorted(search.shapes(), key=lambda shape: (shape.floor, shape.microbatch, shape.devices))
    for target in (above * shapes[0].floor for above in ABOVE_FLOOR if shapes):
        if search.best > target:
            for shape in shapes:
                search.try_shape(shape, target, TILTS[0])
    for tilt in TILTS[1:]:
        if search.shape is not None:
            search.try_shape(search.shape, search.best, tilt)
    if search.plan is None:
        advice = "give more memory, devices or tables"
        return Infeasible(binding=f"no stages found within {problem.memory_MB:.0f} MB a device", advice=advice)
    return AcesoSolution(
        plan=search.plan,
        milliseconds=search.best,
        bound=min(search.best, shapes[0].floor),
        seconds=time.perf_counter() - started,
        tables=search.used,
    )


class _AcesoSearch:
    """What is known so far: spaces and tables by what they depend on, the best plan."""

    def __init__(self, problem: AcesoProblem, budget: int):
        self.problem, self.budget, self.used = problem, budget, 0
        self.best = np.inf
        self.plan: AcesoPlan | None = None
        self.shape: _Division | None = None
        self._spaces: dict[tuple[int, int], OpSpace | None] = {}
        self._floors: dict[tuple[int, int, int], Floats] = {}

    def shapes(self) -> list[_Division]:
        """Every microbatch and division of the devices that can be, with its floor (that of work alone where far)."""
        batches = [b for b in _batches(self.problem) if self.problem.global_batch % b == 0]
        could = [
            _Division(microbatch=b, devices=g, floor=self._work_floor(b, g))
            for b, g in itertools.product(batches, divisions(self.problem.devices))
            if all(self._space(b, devices) for devices in g)
        ]
        found, least = list[_Division](), np.inf
        for shape in sorted(could, key=lambda shape: (shape.floor, shape.microbatch, shape.devices)):
            floor = shape.floor if shape.floor > FAR * least else self._floor(shape.microbatch, shape.devices)
            found.append(replace(shape, floor=max(shape.floor, floor)))
            least = min(least, floor)
        return [shape for shape in found if np.isfinite(shape.floor)]

    def _work_floor(self, microbatch: int, devices: tuple[int, ...]) -> float:
        """All devices busy all the time with every op in its cheapest state."""
        spaces = [(g, self._space(microbatch, g)) for g in sorted(set(devices))]
        work = np.min([g * at.time.min(axis=1) for g, at in spaces if at is not None], axis=0).sum()
        return float(work) / self.problem.devices * (self.problem.global_batch // microbatch)

    def try_shape(self, shape: _Division, target: float, tilt: float) -> None:
        """Searches one shape for a plan within `target` milliseconds; keeps what is better."""
        if shape.floor >= min(self.best, target):
            return
        count = self.problem.global_batch // shape.microbatch
        slowest = min(self.best, target) / count
        floors = self._floors_of(shape.microbatch, shape.devices)
        starts = tuple(
            flags[:-1] & self._cheap_cuts(shape.microbatch, slowest) for flags in possible_starts(floors, slowest)
        )
        work = (self.used + len(floors)) * len(self.problem.ops)
        if work > self.budget or not all(flags.any() for flags in starts):
            return
        self.used += len(floors)
        found = tuple(self._table(shape, i, slowest, flags, tilt) for i, flags in enumerate(starts))
        step, cuts = best_cuts(tuple(table.best for table in found), count)
        if step < self.best:
            self._keep(shape, found, cuts, tilt)

    def _keep(self, shape: _Division, found: tuple[Table, ...], cuts: tuple[int, ...], tilt: float) -> None:
        """Writes the plan out and has it judged."""
        stages = []
        for i, (table, a, b) in enumerate(zip(found, (0, *cuts), cuts, strict=False)):
            at = self._space(shape.microbatch, shape.devices[i])
            assert at is not None, "a table was made of it"
            grid = grid_of(at, tilt)
            only = Grid(prices=grid.prices[[table.price[a, b]]], tilt=tilt)
            stages.append(traced(at, len(shape.devices) - i - 1, a, b, only, int(table.state[a, b])))
        plan = AcesoPlan(microbatch=shape.microbatch, stages=tuple(stages))
        value = step_of(self.problem, plan)
        if value.milliseconds < self.best and value.peak_MB <= self.problem.memory_MB * (1 + 1e-9):
            self.best, self.plan, self.shape = value.milliseconds, plan, shape

    def _space(self, microbatch: int, devices: int) -> OpSpace | None:
        """The space of stages of so many devices."""
        if (microbatch, devices) not in self._spaces:
            self._spaces[microbatch, devices] = space(self.problem, microbatch, devices)
        return self._spaces[microbatch, devices]

    def _cheap_cuts(self, microbatch: int, slowest: float) -> Flags:
        """Where a cut sends little: within a part of the slowest stage of the least among the ops around it."""
        transfers = []
        for devices in {g for b, g in self._spaces if b == microbatch}:
            at = self._space(microbatch, devices)
            if at is not None:
                transfers.append(at.enter.min(axis=1) + np.append(0.0, at.leave.min(axis=1)[:-1]))
        sent = np.pad(np.min(transfers, axis=0), AROUND, mode="edge")
        around = np.lib.stride_tricks.sliding_window_view(sent, 2 * AROUND + 1).min(axis=1)
        cheap: Flags = sent[AROUND:-AROUND] <= around + LITTLE * slowest
        cheap[0] = True
        return cheap

    def _floor(self, microbatch: int, devices: tuple[int, ...]) -> float:
        """The floor of a shape; inf where it cannot be."""
        tables = self._floors_of(microbatch, devices)
        count = self.problem.global_batch // microbatch
        return (count - 1) * least_maximum(tables) + least_sum(tables)[0]

    def _floors_of(self, microbatch: int, devices: tuple[int, ...]) -> tuple[Floats, ...]:
        """Per stage of a shape what each range takes at least."""
        keys = [(microbatch, g, len(devices) - i - 1) for i, g in enumerate(devices)]
        for key in keys:
            at = self._space(key[0], key[1])
            if at is not None and key not in self._floors:
                self._floors[key] = floor_table(at, self.problem.memory_MB, key[2])
        return tuple(self._floors[key] for key in keys)

    def _table(self, shape: _Division, stage: int, slowest: float, starts: Flags, tilt: float) -> Table:
        """The stages of one place of the pipeline, no slower than `slowest`."""
        at = self._space(shape.microbatch, shape.devices[stage])
        assert at is not None, "shapes() left it out otherwise"
        return stage_table(
            at, self.problem.memory_MB, len(shape.devices) - stage - 1, slowest, starts, grid_of(at, tilt)
        )


def divisions(devices: int) -> list[tuple[int, ...]]:
    """Every division of the devices into stages of 1, 2, 4 or 8, in order."""
    if devices == 0:
        return [()]
    return [(g, *rest) for g in (1, 2, 4, 8) if g <= devices for rest in divisions(devices - g)]


def _batches(problem: AcesoProblem) -> tuple[int, ...]:
    """Samples of all replicas per microbatch: those measured, and no more, as the published search has it."""
    return problem.microbatches
