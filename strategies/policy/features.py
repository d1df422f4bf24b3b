"""What the network sees: numbers of the problem, and of each option, whatever the sizes; all finite and within `REACH`.

    problem   counts as logarithms, how unlike devices are, how tight memory is, communication beside computation
    decision  which one is next, one of `DECISIONS`
    outline   of an option's outline: degrees, bubble, compute, messages, reduction and update against the unit
              (`Loads.unit`), memory of the first and the last position were it cut evenly
    stage     of an option of a stage: its load and that of what is left against what is fair, its memory, its message

Ratios are taken as logarithms. Seconds and bytes come from `Costs`; no plan is estimated for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log, log1p, log2
from typing import get_args

import numpy as np
import numpy.typing as npt

from placer.costs.costs import Costs
from placer.costs.memory.in_flight import microbatches_in_flight
from placer.io.memo import remembered
from placer.plans.plan import BY_FSDP, Recompute, Sharding, Stage
from placer.plans.schedule import NAMES
from placer.strategies.policy.game import DECISIONS, MOST_OPTIONS, Game, State
from placer.strategies.policy.loads import Loads
from placer.strategies.space.outline import Outline, recomputes

Numbers = npt.NDArray[np.float32]

PROBLEM, OUTLINE, STAGE = 16, 27, 14
OPTION = OUTLINE + STAGE
SIZE = PROBLEM + len(DECISIONS) + MOST_OPTIONS * OPTION
# No number is further from zero: what is more extreme looks the same.
REACH = 4.0
# Cuts and borders that are looked at for what is typical.
SAMPLED = 8
SMALL = 1e-30


@dataclass(frozen=True, eq=False)
class Features:
    """The features of one game; remembers them."""

    game: Game

    def observation(self, state: State, options: Sequence[State]) -> Numbers:
        """Of a state that is not finished: problem, decision, then each option, zeros where there is none."""
        found = np.zeros(SIZE, dtype=np.float32)
        found[:PROBLEM] = self._problem
        found[PROBLEM + state.decision] = 1.0
        for place, option in enumerate(options):
            start = PROBLEM + len(DECISIONS) + place * OPTION
            found[start : start + OUTLINE] = self._outline(option.outline)
            if DECISIONS[state.decision] == "stage":
                found[start + OUTLINE : start + OPTION] = self._stage(state, option)
        return found

    @cached_property
    def _problem(self) -> Numbers:
        return _bounded(self._of_problem())

    def _of_problem(self) -> Iterator[float]:
        problem, loads, chips = self.game.problem, self._loads, self.game.problem.cluster.devices
        costs, size, blocks = problem.costs, problem.cluster.size, len(problem.graph.blocks)
        whole = costs.ranges.of(0, blocks)
        state = 4 * whole.counts.parameters + whole.counts.buffers
        kept = whole.saved.at(problem.rows)
        room = [max(1, chip.memory_bytes - chip.overhead_bytes) for chip in (chips[k] for k in self._kinds)]
        unit, speeds = max(loads.unit, SMALL), loads.device_speeds
        every = tuple(range(size))
        reduced = costs.network.collective("all_reduce", every, whole.counts.trainable * costs.numerics.weight_bytes)
        few, many = (costs.block_times.of(0, rows).forward[-1] for rows in (1, 8))
        yield from (log2(size) / 4, log2(blocks) / 4, log2(problem.rows) / 4, log2(len(problem.cluster.nodes)) / 4)
        yield log(max(speeds) / min(speeds))
        yield log(max(room) / min(room))
        yield log(max(1, state) / (size * min(room))) / 2
        yield log(max(1, state) / max(room)) / 2
        yield log(max(1, kept) / (size * min(room))) / 2
        yield log1p(reduced / unit)
        yield log1p(self._message(0, size - 1, self._crossing(-1, problem.rows)) / unit)
        yield 8 * few / max(many, SMALL) / 4
        yield float(problem.settings.optimizer == "adamw")
        yield float(len(recomputes(problem)) > 1)
        yield float(problem.settings.overlap)
        yield log(max(1e-3, self._largest(-1) * size)) / 2

    @remembered
    def _outline(self, outline: Outline) -> Numbers:
        return _bounded(self._of_outline(outline))

    def _of_outline(self, outline: Outline) -> Iterator[float]:
        loads, unit = self._loads, max(self._loads.unit, SMALL)
        speeds, count, positions = loads.speeds(outline), outline.count, outline.positions
        level, idle = 1 / sum(speeds), (positions - 1) / outline.virtual
        yield from (log2(positions) / 4, log2(outline.replicas) / 4, log2(count) / 4, log2(outline.degree) / 4)
        yield outline.virtual / 4
        yield idle / (count + idle)
        yield positions * outline.replicas * outline.degree / self.game.problem.cluster.size
        yield log((count + idle) * level / unit)
        yield log(max(speeds) / min(speeds))
        yield log(max(1e-3, self._largest(outline.layout) * outline.stages)) / 2
        yield log1p(count * self._messages(outline) / unit)
        yield log1p(self._messages(outline) / max(level, SMALL))
        yield from (log1p(seconds / unit) for seconds in self._after_backward(outline))
        yield float(bool(outline.shares))
        yield from (float(outline.schedule == name) for name in NAMES)
        yield from (float(outline.sharding == name) for name in get_args(Sharding))
        yield from self._fills(outline)

    def _after_backward(self, outline: Outline) -> tuple[float, float]:
        """Seconds of what is said about gradients and parameters of a position in a step, and of its update."""
        costs, blocks = self._loads.costs(outline), len(self.game.problem.graph.blocks)
        held = costs.ranges.of(0, blocks).counts
        size = held.trainable * costs.numerics.weight_bytes / outline.positions
        leaders = outline.devices(0)[:: outline.degree]
        if outline.sharding in BY_FSDP:
            gathers = 2 * outline.count if outline.sharding == "parameters" else 1
            said = gathers * costs.network.collective("all_gather", leaders, size)
            said += costs.network.collective("reduce_scatter", leaders, size)
        else:
            said = costs.network.collective("all_reduce", leaders, size)
        update = costs.after_backward.optimizer(
            0, blocks, device=leaders[0], sharding=outline.sharding, replicas=outline.replicas
        )
        return said, update / outline.positions

    def _fills(self, outline: Outline) -> Iterator[float]:
        """Of the first and the last position, with the least and with the most recompute allowed, bytes over room."""
        blocks, stages = len(self.game.problem.graph.blocks), outline.stages
        again = recomputes(self.game.problem)
        for position in (0, outline.positions - 1):
            own = [(stage * blocks // stages, (stage + 1) * blocks // stages) for stage in range(stages)]
            for recompute in (again[0], again[-1]):
                ranges = tuple(own[position :: outline.positions])
                yield self._fill(outline, position, ranges, (recompute,) * len(ranges))

    @remembered
    def _fill(
        self, outline: Outline, position: int, ranges: tuple[tuple[int, int], ...], recompute: tuple[Recompute, ...]
    ) -> float:
        """The logarithm of the bytes a position holds, were these its stages, over what it has."""
        costs, chips = self._loads.costs(outline), self.game.problem.cluster.devices
        stages = tuple(
            Stage(
                first=first, last=last, devices=outline.devices(position), shares=outline.shares,
                sharding=outline.sharding, recompute=again, degree=outline.degree,
            )
            for (first, last), again in zip(ranges, recompute, strict=True)
        )  # fmt: skip
        flying = microbatches_in_flight(outline.schedule, outline.positions, outline.stages, outline.count)[position]
        device, held = costs.memory(stages, flying, outline.microbatch, accumulates=outline.count > 1)
        return log(max(1, held.total) / chips[device].memory_bytes)

    def _stage(self, state: State, option: State) -> Numbers:
        return _bounded(self._of_stage(state, option))

    def _of_stage(self, state: State, option: State) -> Iterator[float]:
        outline, stage, first, end = state.outline, state.stage, state.first, option.ends[state.stage]
        recomputes_now = option.recompute[stage]
        loads, positions, blocks = self._loads, outline.positions, len(self.game.problem.graph.blocks)
        sums, speeds = loads.position(outline, stage % positions), loads.speeds(outline)
        level = max(sums[-1] / outline.stages, SMALL)
        own = max(sums[end] - sums[first], SMALL)
        left = (sums[-1] - sums[end]) * speeds[stage % positions]
        able = sum(speeds[later % positions] for later in range(stage + 1, outline.stages))
        costs, rows = loads.costs(outline), -(-outline.microbatch // outline.replicas)
        again = costs.block_times.of(outline.devices(stage % positions)[0], rows).again(first, end, recomputes_now)
        filled = self._fill(outline, stage % positions, *_on_position(option, stage))
        held = costs.ranges.of(first, end).counts.parameters
        crossing = self._message(
            outline.devices(stage % positions)[0], outline.devices((stage + 1) % positions)[0],
            costs.ranges.of(first, end).sent.at(rows),
        )  # fmt: skip
        yield log(own / level)
        yield log(max(left / able / level, 1e-2)) if able else 0.0
        yield log(own / max(self._most_loaded(state), SMALL)) if stage else 0.0
        yield log(max(left / able / own, 1e-2)) if able else 0.0
        yield filled
        yield float(filled > 0)
        yield float(recomputes_now is not False)
        yield again / own
        yield log1p(crossing / level)
        yield stage / outline.stages
        yield float(stage == outline.stages - 1)
        yield (end - first) * outline.stages / blocks / 2
        yield held * outline.stages / max(1, costs.ranges.of(0, blocks).counts.parameters) / 2
        yield log(max(own / max(loads.unit, SMALL), 1e-3)) / 2

    def _most_loaded(self, state: State) -> float:
        """Seconds of the longest stage so far."""
        spans = zip((0, *state.ends[:-1]), state.ends, strict=True)
        sums = [self._loads.position(state.outline, stage % state.outline.positions) for stage in range(state.stage)]
        return max((own[last] - own[first] for own, (first, last) in zip(sums, spans, strict=True)), default=0.0)

    @remembered
    def _messages(self, outline: Outline) -> float:
        """Seconds of a typical message between two positions, on and back, over the slowest of some borders."""
        if outline.positions == 1:
            return 0.0
        size = self._crossing(outline.layout, -(-outline.microbatch // outline.replicas))
        leaders = [outline.devices(position)[0] for position in range(outline.positions)]
        borders = range(0, outline.positions - 1, max(1, outline.positions // SAMPLED))
        return 2 * max(self._message(leaders[at], leaders[at + 1], size) for at in borders)

    @remembered
    def _message(self, source: int, target: int, size: int) -> float:
        return self.game.problem.costs.network.message(source, target, size) if source != target else 0.0

    @remembered
    def _crossing(self, layout: int, rows: int) -> int:
        """Bytes that enter the blocks after a cut, the mean over some cuts."""
        costs, blocks = self._costs(layout), len(self.game.problem.graph.blocks)
        cuts = range(1, blocks, max(1, blocks // SAMPLED))
        return sum(costs.ranges.of(cut, blocks).received.at(rows) for cut in cuts) // max(1, len(cuts))

    @remembered
    def _largest(self, layout: int) -> float:
        """The share of the longest block in the seconds of all."""
        sums = self._costs(layout).block_times.of(0, 1)
        whole = [a + b for a, b in zip(sums.forward, sums.backward, strict=True)]
        return max(b - a for a, b in pairwise(whole)) / max(whole[-1], SMALL)

    def _costs(self, layout: int) -> Costs:
        return self.game.problem.costs.under(self.game.layouts[layout] if layout >= 0 else None)

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        """One device of each kind."""
        return tuple(sorted(set(self.game.problem.costs.block_times.device_class)))

    @property
    def _loads(self) -> Loads:
        return self.game.loads


def mask(count: int) -> npt.NDArray[np.bool_]:
    """Which of `MOST_OPTIONS` there are, of so many."""
    return np.arange(MOST_OPTIONS) < count


def _bounded(values: Iterator[float]) -> Numbers:
    """Within `REACH`; what is no number is nothing."""
    found = np.fromiter(values, dtype=np.float64)
    return np.clip(np.nan_to_num(found, nan=0.0, posinf=REACH, neginf=-REACH), -REACH, REACH).astype(np.float32)


def _on_position(option: State, stage: int) -> tuple[tuple[tuple[int, int], ...], tuple[Recompute, ...]]:
    """The stages that the position of `stage` has by then, and whether they recompute; those to come like this one."""
    positions, virtual = option.outline.positions, option.outline.virtual
    spans = tuple(zip((0, *option.ends[:-1]), option.ends, strict=True))[: stage + 1]
    own, again = spans[stage % positions :: positions], option.recompute[stage % positions : stage + 1 : positions]
    missing = virtual - len(own)
    return (*own, *own[-1:] * missing), (*again, *again[-1:] * missing)
