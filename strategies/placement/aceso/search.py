"""Aceso's problem solved: microbatch, stages and their devices, per op degrees, algorithm and recomputation.

    minimise (n - 1) max_i time_i + sum_i time_i    (formula: `published_planners.aceso`), memory_i <= limit

For each microbatch and each division of the devices over stages a bound is proved first (`lower_bounds`); they are
searched in the order of their bounds, while a bound lies below the best plan: the fastest stage of every range of ops
(`stage_table`), then the cuts (`best_cuts`). The least bound of all is the bound. The budget counts tables
times ops.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placer.errors import Infeasible
from placer.io.memo import once, remembered
from placer.placement.published_planners.aceso import AcesoPlan, AcesoProblem, step_of
from placer.strategies.engine.arrays import Flags, Floats
from placer.strategies.engine.chain_cuts import best_cuts, least_maximum, least_sum, possible_starts
from placer.strategies.placement.aceso.op_choices import OpSpace, lower_bounds, space
from placer.strategies.placement.aceso.stage_dp import TILTS, Grid, Table, grid_of, stage_table, traced

# Plans are looked for within these multiples of the least bound, one after the other: the nearer, the fewer stages.
ABOVE_BOUND = (1.06, 1.15, 1.3, 1.6, 2.5, 10.0, 1000.0)
# A division whose work alone takes this much longer than the least bound needs no better bound of its own.
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


class _Division(NamedTuple):
    """The devices of each stage and a microbatch, with their lower bound: in this order they are searched."""

    bound: float
    microbatch: int
    devices: tuple[int, ...]


def solve_aceso(problem: AcesoProblem, *, budget: int = 3000) -> AcesoSolution | Infeasible:
    """The best plan found, and the bound of every plan; `budget` counts tables of stages times ops."""
    started = time.perf_counter()
    search = _AcesoSearch(problem, budget)
    divided = sorted(search.divided())
    for target in (above * divided[0].bound for above in ABOVE_BOUND if divided):
        if search.best > target:
            for division in divided:
                search.try_division(division, target, TILTS[0])
    for tilt in TILTS[1:]:
        if search.division is not None:
            search.try_division(search.division, search.best, tilt)
    if search.plan is None:
        advice = "give more memory, devices or tables"
        return Infeasible(binding=f"no stages found within {problem.memory_MB:.0f} MB a device", advice=advice)
    return AcesoSolution(
        plan=search.plan,
        milliseconds=search.best,
        bound=min(search.best, divided[0].bound),
        seconds=time.perf_counter() - started,
        tables=search.used,
    )


class _AcesoSearch:
    """What is known so far: spaces and tables by what they depend on, the best plan."""

    def __init__(self, problem: AcesoProblem, budget: int):
        self.problem, self.budget, self.used = problem, budget, 0
        self.best = np.inf
        self.plan: AcesoPlan | None = None
        self.division: _Division | None = None
        self._spaces: dict[tuple[int, int], OpSpace | None] = {}

    def divided(self) -> list[_Division]:
        """Every microbatch and division of the devices that can be, with its bound (that of work alone where far)."""
        batches = [b for b in self.problem.microbatches if self.problem.global_batch % b == 0]
        could = [
            _Division(self._work_bound(b, g), b, g)
            for b, g in itertools.product(batches, divisions(self.problem.devices))
            if all(self._space(b, devices) for devices in g)
        ]
        found, least = list[_Division](), np.inf
        for division in sorted(could):
            bound = division.bound if division.bound > FAR * least else self._bound(division)
            found.append(division._replace(bound=max(division.bound, bound)))
            least = min(least, bound)
        return [division for division in found if np.isfinite(division.bound)]

    def _work_bound(self, microbatch: int, devices: tuple[int, ...]) -> float:
        """All devices busy all the time with every op in its cheapest state."""
        spaces = [(g, self._possible(microbatch, g)) for g in sorted(set(devices))]
        work = np.min([g * at.time.min(axis=1) for g, at in spaces], axis=0).sum()
        return float(work) / self.problem.devices * (self.problem.global_batch // microbatch)

    def try_division(self, division: _Division, target: float, tilt: float) -> None:
        """Searches one division for a plan within `target` milliseconds; keeps what is better."""
        if division.bound >= min(self.best, target):
            return
        count = self.problem.global_batch // division.microbatch
        slowest = min(self.best, target) / count
        bounds = self._bounds_of(division)
        starts = tuple(
            flags[:-1] & self._cheap_cuts(division.microbatch, slowest) for flags in possible_starts(bounds, slowest)
        )
        work = (self.used + len(bounds)) * len(self.problem.ops)
        if work > self.budget or not all(flags.any() for flags in starts):
            return
        self.used += len(bounds)
        found = list[Table]()
        for stage, (devices, flags) in enumerate(zip(division.devices, starts, strict=True)):
            at, behind = self._possible(division.microbatch, devices), len(division.devices) - stage - 1
            found.append(stage_table(at, self.problem.memory_MB, behind, slowest, flags, grid_of(at, tilt)))
        step, cuts = best_cuts(tuple(table.best for table in found), count)
        if step < self.best:
            self._keep(division, found, cuts, tilt)

    def _keep(self, division: _Division, found: list[Table], cuts: tuple[int, ...], tilt: float) -> None:
        """Writes the plan out and has it judged."""
        stages = []
        for i, (table, a, b) in enumerate(zip(found, (0, *cuts), cuts, strict=False)):
            at = self._possible(division.microbatch, division.devices[i])
            grid = grid_of(at, tilt)
            only = Grid(prices=grid.prices[[table.price[a, b]]], tilt=tilt)
            stages.append(traced(at, len(division.devices) - i - 1, a, b, only, int(table.state[a, b])))
        plan = AcesoPlan(microbatch=division.microbatch, stages=tuple(stages))
        value = step_of(self.problem, plan)
        if value.milliseconds < self.best and value.peak_MB <= self.problem.memory_MB * (1 + 1e-9):
            self.best, self.plan, self.division = value.milliseconds, plan, division

    def _cheap_cuts(self, microbatch: int, slowest: float) -> Flags:
        """Where a cut sends little: within a part of the slowest stage of the least among the ops around it."""
        transfers = []
        for at in (at for (batch, _), at in self._spaces.items() if batch == microbatch):
            if at is not None:
                transfers.append(at.enter.min(axis=1) + np.append(0.0, at.leave.min(axis=1)[:-1]))
        sent = np.pad(np.min(transfers, axis=0), AROUND, mode="edge")
        around = np.lib.stride_tricks.sliding_window_view(sent, 2 * AROUND + 1).min(axis=1)
        cheap: Flags = sent[AROUND:-AROUND] <= around + LITTLE * slowest
        cheap[0] = True
        return cheap

    def _bound(self, division: _Division) -> float:
        """No plan of these devices is faster; inf where there is none."""
        tables = self._bounds_of(division)
        return (self.problem.global_batch // division.microbatch - 1) * least_maximum(tables) + least_sum(tables)[0]

    def _bounds_of(self, division: _Division) -> tuple[Floats, ...]:
        """Per stage what each range of ops takes at least."""
        stages = len(division.devices)
        return tuple(self._bound_table(division.microbatch, g, stages - i - 1) for i, g in enumerate(division.devices))

    @remembered
    def _bound_table(self, microbatch: int, devices: int, behind: int) -> Floats:
        return lower_bounds(self._possible(microbatch, devices), self.problem.memory_MB, behind)

    def _possible(self, microbatch: int, devices: int) -> OpSpace:
        """The space of stages of so many devices, of divisions that can be."""
        at = self._space(microbatch, devices)
        assert at is not None, "divided() left it out otherwise"
        return at

    def _space(self, microbatch: int, devices: int) -> OpSpace | None:
        return once(self._spaces, (microbatch, devices), space, self.problem, microbatch, devices)


def divisions(devices: int) -> list[tuple[int, ...]]:
    """Every division of the devices into stages of 1, 2, 4 or 8, in order."""
    if devices == 0:
        return [()]
    return [(g, *rest) for g in (1, 2, 4, 8) if g <= devices for rest in divisions(devices - g)]
