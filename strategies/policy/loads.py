"""Seconds that a microbatch's blocks take at each position of an outline, and how fast all machines are together.

seconds of position q      of the whole model, forward and backward, on the slowest of its devices with its rows
share of stage s           (1 / seconds of its position) / sum over the stages from s on of the same: where all of
                           them would take equally long
unit                       seconds of the whole batch if every device computed at once, each at its own speed
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from operator import add

from placer.costs.costs import Costs
from placer.io.memo import remembered
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.space.outline import Outline

Sums = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Loads:
    """The seconds of one problem's blocks; remembers them."""

    problem: Problem
    layouts: tuple[Layout, ...]

    def costs(self, outline: Outline) -> Costs:
        """The costs under an outline's layout."""
        return self.problem.costs.under(self.layouts[outline.layout] if outline.layout >= 0 else None)

    @remembered
    def position(self, outline: Outline, position: int) -> Sums:
        """Prefix sums over blocks of the seconds of a full microbatch at a position."""
        costs, devices = self.costs(outline), outline.devices(position)
        each, kinds = outline.rows_each, costs.block_times.device_class
        loads = {(kinds[device], each[place // outline.degree]) for place, device in enumerate(devices)}
        return max((self._sums(outline.layout, device, rows) for device, rows in loads), key=lambda sums: sums[-1])

    @remembered
    def _sums(self, layout: int, device: int, rows: int) -> Sums:
        chosen = self.layouts[layout] if layout >= 0 else None
        seconds = self.problem.costs.under(chosen).block_times.of(device, rows)
        return tuple(map(add, seconds.forward, seconds.backward))

    @remembered
    def speeds(self, outline: Outline) -> tuple[float, ...]:
        """Models a second at each position."""
        return tuple(1.0 / max(self.position(outline, p)[-1], 1e-30) for p in range(outline.positions))

    def balanced_end(self, outline: Outline, stage: int, first: int) -> int:
        """Where a stage that begins at block `first` ends if it takes its share of what is left."""
        speeds, positions = self.speeds(outline), outline.positions
        left = sum(speeds[later % positions] for later in range(stage, outline.stages))
        sums = self.position(outline, stage % positions)
        wanted = sums[first] + (sums[-1] - sums[first]) * speeds[stage % positions] / left
        end = bisect_left(sums, wanted, lo=first + 1, hi=len(sums) - 1)
        return end - 1 if end > first + 1 and sums[end] - wanted > wanted - sums[end - 1] else end

    @cached_property
    def unit(self) -> float:
        """Seconds of the batch on all devices at their own speeds."""
        rows = max(1, self.problem.rows // self.problem.cluster.size)
        kinds = self.problem.costs.block_times.device_class
        known = {kind: self._sums(-1, kind, rows)[-1] / rows for kind in set(kinds)}
        return self.problem.rows / sum(1.0 / max(known[kind], 1e-30) for kind in kinds)

    @cached_property
    def device_speeds(self) -> tuple[float, ...]:
        """Rows a second of one device of each kind."""
        kinds = set(self.problem.costs.block_times.device_class)
        return tuple(1.0 / max(self._sums(-1, kind, 1)[-1], 1e-30) for kind in sorted(kinds))
