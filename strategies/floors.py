"""Lower bounds that hold for every way to cut: seconds and bytes of blocks, added up.

`floor` is linear in the seconds of the blocks it is given (but for one maximum of sums), so that it serves for a block,
for all blocks from j on and for the whole model:

    fill      1f1b, gpipe: F + B;  interleaved: (F + B) / v;  zero-bubble: max(F, B - W)
    steady    (m-2) (F + B) + F' + B' (m = 1: 0); interleaved: + (1 - 1/v) (F + B) (1 + max(0, p - m));
              zero-bubble: + what each block alone hides

on the fastest kind of device used, without messages, gathers, recompute (unless it is fixed) and prologue. A step:

    step >= fill(all) + max(steady(all) / p, steady of the slowest block,
                            ceil(c / p) * steady of a block that occurs c times before the last block)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

from placer.memory import stage_memory
from placer.search import Problem
from placer.strategies.runs import Runs
from placer.strategies.space import Outline, recomputes

# Sums in another order differ by rounding; a floor must not exceed what it bounds.
SLACK = 1 - 1e-12


class Amount(NamedTuple):
    """Seconds of some blocks; `hide` the sum of each block's least of W, F and B - W."""

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    hide: float = 0.0

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))


class Floor(NamedTuple):
    """What some blocks add at least."""

    fill: float
    steady: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Of each block, and of all blocks from j on (`rest[j]`)."""

    each: tuple[Amount, ...]
    rest: tuple[Amount, ...]


def floor(outline: Outline, full: Amount, last: Amount) -> Floor:
    """What blocks add to fill and steady of an outline: seconds of full microbatches, and of the last one."""
    m, work = outline.count, full.forward + full.backward
    steady = (m - 2) * work + last.forward + last.backward if m > 1 else 0.0
    fill = work
    if outline.virtual > 1:
        fill = work / outline.virtual
        steady += (1 - 1 / outline.virtual) * work * (1 + max(0, outline.positions - m))
    elif outline.schedule == "zero-bubble" and outline.positions > 1:
        fill = max(full.forward, full.backward - full.weight)
        steady += full.weight + min(1.0, (m - 1) / (outline.positions - 1)) * full.hide
    return Floor(SLACK * fill, SLACK * steady)


class Bounds:
    """Floors of the outlines of one problem; remembers what they share."""

    def __init__(self, problem: Problem, runs: Runs) -> None:
        self.problem = problem
        self.runs = runs
        self._amounts: dict[tuple[tuple[int, ...], int, int], Amounts] = {}
        self._bytes: dict[tuple[str, int, int, int, bool], tuple[int, ...]] = {}

    def step(self, outline: Outline) -> float:
        """No plan of the outline is estimated faster."""
        full, last = self._full(outline), self._last(outline)
        whole = floor(outline, full.rest[0], last.rest[0])
        slowest = max(range(len(full.each)), key=lambda b: full.each[b].forward + full.each[b].backward)
        steady = max(
            whole.steady / outline.positions,
            floor(outline, full.each[slowest], last.each[slowest]).steady,
            ceil(self._commonest[1] / outline.positions)
            * floor(outline, full.each[self._commonest[0]], last.each[self._commonest[0]]).steady,
        )
        return whole.fill + steady

    def rest(self, outline: Outline) -> tuple[Floor, ...]:
        """What all blocks from j on add at least."""
        full, last = self._full(outline), self._last(outline)
        return tuple(floor(outline, a, b) for a, b in zip(full.rest, last.rest, strict=True))

    def bytes(self, outline: Outline) -> tuple[int, ...]:
        """Bytes that all positions together hold at least for the blocks from j on: state and kept activations."""
        alive = {"gpipe": outline.count, "interleaved": 0}.get(outline.schedule, 1)
        rows = -(-outline.microbatch // outline.replicas)
        key = (outline.sharding, outline.replicas, rows, alive, outline.count > 1)
        found = self._bytes.get(key)
        if found is None:
            blocks = len(self.problem.graph.blocks)
            found = self._bytes[key] = (*(self.run_bytes(outline, j, blocks, alive) for j in range(blocks)), 0)
        return found

    def run_bytes(self, outline: Outline, first: int, last: int, alive: int) -> int:
        """Bytes a position holds at least for a run of which `alive` microbatches are kept; more for a longer run."""
        span = self.runs.costs.spans.of(first, last)
        rows = -(-outline.microbatch // outline.replicas)
        held = stage_memory(
            span, self.runs.costs.numerics, self.problem.settings, rows=rows, recompute=False,
            sharding=outline.sharding, replicas=outline.replicas, accumulates=outline.count > 1,
        )  # fmt: skip
        kept = {False: span.saved, True: span.inputs}
        least = min(kept[again].at(rows) for again in recomputes(self.problem))
        return held.parameters + held.gradients + held.optimizer + held.buffers + alive * least

    def _full(self, outline: Outline) -> Amounts:
        return self._amounts_at(outline, outline.microbatch)

    def _last(self, outline: Outline) -> Amounts:
        return self._amounts_at(outline, outline.last_rows)

    def _amounts_at(self, outline: Outline, rows: int) -> Amounts:
        most, fewest = -(-rows // outline.replicas), rows // outline.replicas
        key = (self.runs.kinds_used(outline.positions * outline.replicas), most, fewest)
        found = self._amounts.get(key)
        if found is None:
            found = self._amounts[key] = self._make(*key)
        return found

    def _make(self, devices: tuple[int, ...], most: int, fewest: int) -> Amounts:
        each = tuple(self._block(block, devices, most, fewest) for block in range(len(self.problem.graph.blocks)))
        rest = [Amount()]
        for amount in reversed(each):
            rest.append(rest[-1].plus(amount))
        return Amounts(each=each, rest=tuple(reversed(rest)))

    def _block(self, block: int, devices: tuple[int, ...], most: int, fewest: int) -> Amount:
        """Least seconds of a block over kinds of devices; weight gradients also over the replicas with fewest rows."""
        found = [self.runs.seconds(block, device, most) for device in devices]
        few = [self.runs.seconds(block, device, fewest) for device in devices]
        forward = min(seconds.forward for seconds in found)
        # The model's last block is never recomputed: its backward follows at once.
        again = recomputes(self.problem) == (True,) and block < len(self.problem.graph.blocks) - 1
        backward = min(seconds.backward for seconds in found) + again * forward
        weight = min(seconds.weight for seconds in (*found, *few))
        return Amount(forward, backward, weight, max(0.0, min(weight, forward, backward - weight)))

    @cached_property
    def _commonest(self) -> tuple[int, int]:
        """A block of the class that occurs most often, and how often.

        Without the model's last block: it is never recomputed, and so costs less than others of its class.
        """
        blocks = self.problem.graph.blocks[:-1] or self.problem.graph.blocks
        counts = Counter(block.kind for block in blocks)
        kind, count = max(counts.items(), key=lambda entry: (entry[1], -entry[0]))
        return next(i for i, block in enumerate(blocks) if block.kind == kind), count
