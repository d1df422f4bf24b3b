"""Lower bounds that hold for every way to cut: seconds and bytes of blocks, added up by the floor of `rhythms`.

Each of F, B, W and I = B - W is that of the kind of device that is fastest at it (another one may be at each, so that
B - W of their least ones bounds nothing). Where it is known which devices a position has and how many rows each replica
takes (`at`), a block there takes what the replica slowest at all blocks takes: of F and B the maximum over replicas is
of sums, not a sum of maxima. A step:

    step >= fill(all) + max(steady(all) / p, steady of the slowest block,
                            ceil(c / p) * steady of a block that occurs c times before the last block)

`Bounds.steps` is that of many numbers of positions at once. `narrow` adds to it, for one outline, what its devices and
memory enforce.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from placer.costs.memory.in_flight import InFlight
from placer.costs.memory.peak import StateBytes, stage_state
from placer.plans.plan import replica_rows
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.schedule import Amount, Floor, Rhythm, rhythm
from placer.strategies.inter_op.equivalence import Places, Runs
from placer.strategies.space.outline import Outline, recomputes

# What a position does: (kind of device, rows of a microbatch), of all its replicas.
Work = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Of each block, and of all blocks from j on (`rest[j]`); the first block of most work."""

    each: tuple[Amount, ...]
    rest: tuple[Amount, ...]
    slowest: int


class Bounds:
    """Floors of the outlines of one problem; remembers what they share."""

    def __init__(self, problem: Problem, runs: Runs) -> None:
        self.problem = problem
        self.runs = runs
        self.one_chip = len(set(problem.cluster.devices)) == 1
        self._amounts: dict[tuple[tuple[int, ...], int, int], Amounts] = {}
        self._places: dict[Work, Amounts] = {}
        self._least: dict[frozenset[Work], Amounts] = {}
        self._bytes: dict[tuple[str, int, int, InFlight, bool], tuple[int, ...]] = {}
        self._all_bytes: dict[tuple[str, int, int, InFlight, bool], int] = {}

    def step(self, outline: Outline) -> float:
        """No plan of the outline is estimated faster, whatever its device order and shares."""
        full, last = (self._anywhere(rows, outline.replicas) for rows in (outline.microbatch, outline.last_rows))
        pace, p = rhythm(outline), outline.positions
        whole = pace.floor(p, full.rest[0], last.rest[0])
        block, count = self.commonest
        steady = max(
            whole.steady / p,
            pace.floor(p, full.each[full.slowest], last.each[full.slowest]).steady,
            -(-count // p) * pace.floor(p, full.each[block], last.each[block]).steady,
        )
        return whole.fill + steady

    def steps(self, positions: NDArray[np.int64], replicas: int, rows: int, pace: Rhythm) -> NDArray[np.float64]:
        """`step` for many numbers of positions above 1, with microbatches of `rows` rows over `replicas`."""
        full, last = (self._anywhere(own, replicas) for own in (rows, self.problem.rows % rows or rows))
        fill, steady = pace.floors(positions, full.rest[0], last.rest[0])
        block, count = self.commonest
        _, alone = pace.floors(positions, full.each[full.slowest], last.each[full.slowest])
        _, common = pace.floors(positions, full.each[block], last.each[block])
        return fill + np.maximum(np.maximum(steady / positions, alone), -(-count // positions) * common)

    def rest(self, outline: Outline, places: Places) -> tuple[Floor, ...]:
        """What all blocks from j on add at least."""
        (full, last), pace = self.least(outline, places), rhythm(outline)
        return tuple(pace.floor(outline.positions, a, b) for a, b in zip(full.rest, last.rest, strict=True))

    def bytes(self, outline: Outline) -> tuple[int, ...]:
        """Bytes that all positions together hold at least for the blocks from j on: state and kept activations."""
        key = self._holding(outline)
        found = self._bytes.get(key)
        if found is None:
            blocks = len(self.problem.graph.blocks)
            found = self._bytes[key] = (*(self.run_bytes(outline, j, blocks, key[3]) for j in range(blocks)), 0)
        return found

    def all_bytes(self, outline: Outline) -> int:
        """`bytes` of all blocks."""
        key = self._holding(outline)
        found = self._all_bytes.get(key)
        if found is None:
            found = self._all_bytes[key] = self.run_bytes(outline, 0, len(self.problem.graph.blocks), key[3])
        return found

    def _holding(self, outline: Outline) -> tuple[str, int, int, InFlight, bool]:
        """What the bytes of an outline depend on: sharding, replicas, rows, microbatches alive, whether they add up."""
        return (
            outline.sharding, outline.replicas, self._held_rows(outline), least_alive(outline), outline.count > 1
        )  # fmt: skip

    def run_bytes(self, outline: Outline, first: int, last: int, alive: InFlight) -> int:
        """Bytes a position of one stage holds at least for a run with so many microbatches; more for a longer run."""
        span = self.runs.costs.ranges.of(first, last)
        rows = self._held_rows(outline)
        kept = {False: span.saved, True: span.inputs}
        least = min(kept[again].at(rows) for again in recomputes(self.problem))
        held = self._state(outline, first, last)
        with_gradients = held.gradients + alive.later[0][0] * least
        return sum(held) - held.gradients + max(alive.first * least, with_gradients)

    def state_bytes(self, outline: Outline, first: int, last: int) -> int:
        """Bytes of parameters, gradients, optimizer state and buffers a position holds for a run."""
        return sum(self._state(outline, first, last))

    def _state(self, outline: Outline, first: int, last: int) -> StateBytes:
        return stage_state(
            self.runs.costs.ranges.of(first, last), self.runs.costs.numerics, self.runs.costs.priced,
            sharding=outline.sharding, replicas=outline.replicas, accumulates=outline.count > 1,
        )  # fmt: skip

    def _held_rows(self, outline: Outline) -> int:
        """Rows that the device with least memory of a position has at least."""
        return outline.most_rows if self.one_chip else outline.fewest_rows

    def least(self, outline: Outline, places: Places) -> tuple[Amounts, Amounts]:
        """Seconds of the blocks for a full microbatch and for the last one, each where it takes fewest."""
        if self.runs.costs.block_times.uniform:
            full, last = (self._anywhere(rows, outline.replicas) for rows in (outline.microbatch, outline.last_rows))
            return full, last
        full, last = (self._least_of(frozenset(works(places, each))) for each in _rows(outline))
        return full, last

    def at(self, outline: Outline, places: Places) -> tuple[tuple[Amounts, Amounts], ...]:
        """The same of each position."""
        if self.runs.costs.block_times.uniform:
            return (self.least(outline, places),) * outline.positions
        full, last = ([self._at(work) for work in works(places, each)] for each in _rows(outline))
        return tuple(zip(full, last, strict=True))

    @cached_property
    def commonest(self) -> tuple[int, int]:
        """A block of the class that occurs most often, and how often.

        Without the model's last block: it is never recomputed, and so costs less than others of its class.
        """
        blocks = self.problem.graph.blocks[:-1] or self.problem.graph.blocks
        counts = Counter(block.kind for block in blocks)
        kind, count = max(counts.items(), key=lambda entry: (entry[1], -entry[0]))
        return next(i for i, block in enumerate(blocks) if block.kind == kind), count

    def _anywhere(self, rows: int, replicas: int) -> Amounts:
        """Seconds of the blocks for a microbatch on the fastest kind of device, however it is shared."""
        fewest = rows // replicas if self.runs.costs.block_times.uniform else 0
        return self._amounts_at(self.runs.kinds_used, -(-rows // replicas), fewest)

    def _at(self, work: Work) -> Amounts:
        """Seconds of the blocks at a position that does `work`."""
        found = self._places.get(work)
        if found is None:
            found = self._places[work] = _summed(self._slowest(work))
        return found

    def _least_of(self, all_works: frozenset[Work]) -> Amounts:
        """Of each block the least of what any of these positions takes."""
        found = self._least.get(all_works)
        if found is None:
            each = [self._at(work).each for work in all_works]
            least = (Amount(*map(min, zip(*own, strict=True))) for own in zip(*each, strict=True))
            found = self._least[all_works] = _summed(tuple(least))
        return found

    def _slowest(self, work: Work) -> tuple[Amount, ...]:
        """Each block on the replica slowest at all forwards, and on that slowest at all backwards; the least W."""
        blocks = range(len(self.problem.graph.blocks))
        own = [[self.runs.seconds(block, kind, rows) for block in blocks] for kind, rows in sorted(work) if rows]
        ahead = max(own, key=lambda each: sum(seconds.forward for seconds in each))
        behind = max(own, key=lambda each: sum(seconds.backward for seconds in each))
        some_idle = any(not rows for _, rows in work)
        found = []
        for block in blocks:
            forward = ahead[block].forward
            again = forward * self._again(block)
            weight = 0.0 if some_idle else min(each[block].weight for each in own)
            inner = behind[block].backward - behind[block].weight + again
            backward = behind[block].backward + again
            found.append(Amount(forward, backward, weight, inner, min(weight, forward, inner)))
        return tuple(found)

    def _again(self, block: int) -> bool:
        """Whether a block's forward is always run again; the model's last one's never: its backward follows at once."""
        return recomputes(self.problem) == (True,) and block < len(self.problem.graph.blocks) - 1

    def _amounts_at(self, kinds: tuple[int, ...], most: int, fewest: int) -> Amounts:
        key = (kinds, most, fewest)
        found = self._amounts.get(key)
        if found is None:
            own = {b: self._block(b, kinds, most, fewest) for b in self._leading}
            found = self._amounts[key] = _summed(self._spread(own), self._leading)
        return found

    def _spread(self, own: dict[int, Amount]) -> tuple[Amount, ...]:
        """The seconds of every block from those of the leading ones."""
        blocks = self.problem.graph.blocks
        return (*(own[self._first_of_class[block.kind]] for block in blocks[:-1]), own[len(blocks) - 1])

    @cached_property
    def _first_of_class(self) -> dict[int, int]:
        """The first block of each class."""
        blocks = self.problem.graph.blocks
        return {blocks[b].kind: b for b in reversed(range(len(blocks)))}

    @cached_property
    def _leading(self) -> tuple[int, ...]:
        """The blocks that stand for all: the first of each class, and the model's last."""
        return tuple(dict.fromkeys((*self._first_of_class.values(), len(self.problem.graph.blocks) - 1)))

    def _block(self, block: int, devices: tuple[int, ...], most: int, fewest: int) -> Amount:
        """Least seconds of a block over kinds of devices; weight gradients also over the replicas with fewest rows."""
        found = [self.runs.seconds(block, device, most) for device in devices]
        few = [self.runs.seconds(block, device, fewest) for device in devices]
        forward = min(seconds.forward for seconds in found)
        again = self._again(block) * forward
        backward = min(seconds.backward for seconds in found) + again
        weight = min(seconds.weight for seconds in (*found, *few)) * (fewest > 0)
        inner = min(seconds.backward - seconds.weight for seconds in found) + again
        return Amount(forward, backward, weight, inner, min(weight, forward, inner))


def least_alive(outline: Outline) -> InFlight:
    """The microbatches that every position of an outline keeps alive at least."""
    if outline.schedule == "interleaved":
        return InFlight(first=0, later=((0,),))
    if outline.schedule == "gpipe":
        return InFlight(first=outline.count, later=((outline.count - 1,),))
    return InFlight(first=1, later=((min(1, outline.count - 1),),))


def works(places: Places, each: tuple[int, ...]) -> list[Work]:
    """What each position does: on which kinds of devices how many rows, `each` replica's."""
    known: dict[tuple[tuple[int, ...], ...], Work] = {}
    found = []
    for kinds in places.kinds:
        if kinds not in known:
            known[kinds] = frozenset((kind, rows) for own, rows in zip(kinds, each, strict=True) for kind in own)
        found.append(known[kinds])
    return found


def _rows(outline: Outline) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows of each replica of a full microbatch and of the last one."""
    return outline.rows_each, replica_rows(outline.last_rows, outline.shares, outline.replicas)


def _summed(each: tuple[Amount, ...], leading: tuple[int, ...] = ()) -> Amounts:
    """With sums over all blocks from each on; the slowest is one of `leading`, where these stand for all."""
    sums = (accumulate(reversed(seconds), initial=0.0) for seconds in zip(*each, strict=True))
    rest = tuple(map(Amount._make, zip(*sums, strict=True)))
    slowest = max(sorted(leading) or range(len(each)), key=lambda b: each[b].work)
    return Amounts(each=each, rest=rest[::-1], slowest=slowest)
