"""Lower bounds that hold for every way to cut: seconds and bytes of blocks, added up by `ScheduleTerms.bound`.

Each of F, B, W and I = B - W is that of the kind of device that is fastest at it (another one may be at each, so that
B - W of their least ones bounds nothing). Where it is known which devices a position has and how many rows each replica
takes (`at`), a block there takes what the replica slowest at all blocks takes: of F and B the maximum over replicas is
of sums, not a sum of maxima. A step:

    step >= fill(all) + max(steady(all) / p, steady of the slowest block,
                            ceil(c / p) * steady of a block that occurs c times before the last block)
    step >= v fill(all) + the same of the turns of v, where there are several

`OutlineBounds.steps` is that of many numbers of positions at once. `refined` adds to it, for one outline, what its
devices and memory enforce.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

import numpy as np

from placer.costs.compute.roofline import BlockSeconds
from placer.costs.memory.block_ranges import BlockRange
from placer.costs.memory.in_flight import InFlight
from placer.costs.memory.parameters import ParameterCounts
from placer.costs.memory.peak import StateBytes, stage_state
from placer.io.memo import once, remembered
from placer.plans.plan import replica_rows
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.schedule import Amount, Counts, Floats, LowerBound, ScheduleTerms
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.space.outline import Outline, recomputes

# What a position does: (kind of device, rows of a microbatch), of all its replicas.
Work = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Of each block, and of all blocks from j on (`rest[j]`); the first block of most work."""

    each: tuple[Amount, ...]
    rest: tuple[Amount, ...]
    slowest: int


class OutlineBounds:
    """Floors of the outlines of one problem; remembers what they share."""

    def __init__(self, problem: Problem, ranges: RangeClasses) -> None:
        self.problem = problem
        self.ranges = ranges
        self.one_chip = len(set(problem.cluster.devices)) == 1
        self._bytes: dict[tuple[str, int, int, InFlight, bool], tuple[int, ...]] = {}
        self._all_bytes: dict[tuple[str, int, int, InFlight, bool], int] = {}

    def steps(self, positions: Counts, replicas: int, terms: ScheduleTerms) -> Floats:
        """No plan of an outline of so many positions is estimated faster, whatever its device order and shares."""
        full, last = (self._anywhere(rows, replicas) for rows in (terms.rows, terms.last_rows))
        block, count = self.commonest
        least = [
            terms.bound(positions, *amounts)
            for amounts in (
                (full.rest[0], last.rest[0]),
                (full.each[full.slowest], last.each[full.slowest]),
                (full.each[block], last.each[block]),
            )
        ]

        def most(whole: Floats, alone: Floats, common: Floats) -> Floats:
            return np.maximum(np.maximum(whole / positions, alone), -(-count // positions) * common)

        fill, steady = least[0].fill, most(*(each.steady for each in least))
        return fill + terms.inner(fill, steady, most(*map(terms.turn, least)))

    def rest(self, outline: Outline, places: PositionClasses) -> tuple[LowerBound[float], ...]:
        """What all blocks from j on add at least."""
        (full, last), terms = self.least(outline, places), ScheduleTerms.of(outline)
        return tuple(terms.bound(outline.positions, a, b) for a, b in zip(full.rest, last.rest, strict=True))

    def bytes(self, outline: Outline) -> tuple[int, ...]:
        """Bytes that all positions together hold at least for the blocks from j on: state and kept activations."""
        return once(self._bytes, self._holding(outline), self._rest_bytes, outline)

    def all_bytes(self, outline: Outline) -> int:
        """`bytes` of all blocks."""
        key, blocks = self._holding(outline), len(self.problem.graph.blocks)
        return once(self._all_bytes, key, self._cut_bytes, outline, 0, blocks, key[3])

    def _rest_bytes(self, outline: Outline) -> tuple[int, ...]:
        blocks, least = len(self.problem.graph.blocks), least_in_flight(outline)
        return (*(self._cut_bytes(outline, j, blocks, least) for j in range(blocks)), 0)

    def _holding(self, outline: Outline) -> tuple[str, int, int, InFlight, bool]:
        """What the bytes of an outline depend on: sharding, replicas, rows, microbatches, whether they add up."""
        return (
            outline.sharding, outline.replicas, self._held_rows(outline), least_in_flight(outline), outline.count > 1
        )  # fmt: skip

    def run_bytes(self, outline: Outline, first: int, last: int, in_flight: InFlight) -> int:
        """Bytes a position of one stage holds at least for a run with so many microbatches; more for a longer run."""
        span, rows = self.ranges.costs.ranges.of(first, last), self._held_rows(outline)
        least = min(span.kept(again).at(rows) for again in recomputes(self.problem))
        return self._bytes_with(outline, first, last, in_flight, least)

    def _cut_bytes(self, outline: Outline, first: int, last: int, in_flight: InFlight) -> int:
        """The same of positions together that have a run between them, of which some may recompute."""
        ranges, rows, allowed = self.ranges.costs.ranges, self._held_rows(outline), recomputes(self.problem)
        least = ranges.of(first, last).kept(allowed[-1]).at(rows)
        if len(allowed) > 1:
            spared = ranges.kept.spared(allowed[-1], rows)
            least = max(0, least - spared[last] + spared[first])
        return self._bytes_with(outline, first, last, in_flight, least)

    def _bytes_with(self, outline: Outline, first: int, last: int, in_flight: InFlight, least: int) -> int:
        """Bytes with so many kept of a microbatch at least."""
        held = self._state(outline, first, last)
        with_gradients = held.gradients + in_flight.later[0][0] * least
        return sum(held) - held.gradients + max(in_flight.first * least, with_gradients)

    def alone_bytes(self, outline: Outline, block: int) -> int:
        """Bytes of parameters, gradients, optimizer state and buffers of a block that no other block holds."""
        span, held = self.ranges.costs.ranges.of(block, block + 1), self.ranges.classes[block][1]
        own = span if held == span.counts else replace(span, counts=held, apart=0)
        return sum(self._state_of(outline, own))

    def _state(self, outline: Outline, first: int, last: int) -> StateBytes:
        return self._state_of(outline, self.ranges.costs.ranges.of(first, last))

    def _state_of(self, outline: Outline, span: BlockRange) -> StateBytes:
        return stage_state(
            span, self.ranges.costs.numerics, self.ranges.costs.priced,
            sharding=outline.sharding, replicas=outline.replicas, accumulates=outline.count > 1,
        )  # fmt: skip

    def _held_rows(self, outline: Outline) -> int:
        """Rows that the device with least memory of a position has at least."""
        return outline.most_rows if self.one_chip else outline.fewest_rows

    def least(self, outline: Outline, places: PositionClasses) -> tuple[Amounts, Amounts]:
        """Seconds of the blocks for a full microbatch and for the last one, each where it takes fewest."""
        if self.ranges.costs.block_times.uniform:
            full, last = (self._anywhere(rows, outline.replicas) for rows in (outline.microbatch, outline.last_rows))
            return full, last
        full, last = (self._least_of(frozenset(works(places, each))) for each in _rows(outline))
        return full, last

    def at(self, outline: Outline, places: PositionClasses) -> tuple[tuple[Amounts, Amounts], ...]:
        """The same of each position."""
        if self.ranges.costs.block_times.uniform:
            return (self.least(outline, places),) * outline.positions
        full, last = ([self._amounts_of(work) for work in works(places, each)] for each in _rows(outline))
        return tuple(zip(full, last, strict=True))

    @cached_property
    def commonest(self) -> tuple[int, int]:
        """A block of the class that occurs most often, and how often."""
        counts = Counter(self.classes)
        ((kind, held), count) = max(counts.items(), key=lambda entry: (entry[1], -entry[0][0], entry[0][1]))
        return self.classes.index((kind, held)), count

    @cached_property
    def classes(self) -> tuple[tuple[int, ParameterCounts], ...]:
        """Those of blocks, but of the model's last one: never recomputed, it costs less than others of its class."""
        return self.ranges.classes[:-1] or self.ranges.classes

    def _anywhere(self, rows: int, replicas: int) -> Amounts:
        """Seconds of the blocks for a microbatch on the fastest kind of device, however it is shared."""
        fewest = rows // replicas if self.ranges.costs.block_times.uniform else 0
        return self._amounts_at(self.ranges.kinds_used, -(-rows // replicas), fewest)

    @remembered
    def _least_of(self, all_works: frozenset[Work]) -> Amounts:
        """Of each block the least of what any of these positions takes."""
        each = [self._amounts_of(work).each for work in all_works]
        return _summed(tuple(Amount(*map(min, zip(*own, strict=True))) for own in zip(*each, strict=True)))

    @remembered
    def _amounts_of(self, work: Work) -> Amounts:
        """Each block on the replica slowest at all forwards, and on that slowest at all backwards; the least W."""
        blocks = range(len(self.problem.graph.blocks))
        own = [[self.ranges.seconds(block, kind, rows) for block in blocks] for kind, rows in sorted(work) if rows]
        ahead = max(own, key=lambda each: sum(seconds.forward for seconds in each))
        behind = max(own, key=lambda each: sum(seconds.backward for seconds in each))
        some_idle = any(not rows for _, rows in work)
        found = []
        for block in blocks:
            forward = ahead[block].forward
            again, more = self._again(block, [ahead[block]])
            weight = 0.0 if some_idle else min(each[block].weight for each in own)
            inner = behind[block].backward - behind[block].weight + again
            backward = behind[block].backward + again
            found.append(Amount(forward, backward, weight, inner, min(weight, forward, inner), more))
        return _summed(tuple(found))

    def _again(self, block: int, found: Sequence[BlockSeconds]) -> tuple[float, float]:
        """The least that running a block's forward again adds, where that is fixed, and where it is chosen.

        The model's last one never runs again: its backward follows at once.
        """
        allowed = recomputes(self.problem)
        if block == len(self.problem.graph.blocks) - 1:
            return 0.0, 0.0
        times = [
            min(one.selective if again == "selective" else min(one.forward, one.recompute) for one in found)
            for again in allowed
            if again
        ]
        least = min(times, default=0.0)
        return (least, 0.0) if False not in allowed else (0.0, least)

    @remembered
    def _amounts_at(self, devices: tuple[int, ...], most: int, fewest: int) -> Amounts:
        """Seconds of every block, from those of the leading ones."""
        own, blocks = {b: self._block(b, devices, most, fewest) for b in self._leading}, self.problem.graph.blocks
        each = (*(own[self._first_of_class[block.kind]] for block in blocks[:-1]), own[len(blocks) - 1])
        return _summed(each, self._leading)

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
        found = [self.ranges.seconds(block, device, most) for device in devices]
        few = [self.ranges.seconds(block, device, fewest) for device in devices]
        forward = min(seconds.forward for seconds in found)
        again, more = self._again(block, found)
        backward = min(seconds.backward for seconds in found) + again
        weight = min(seconds.weight for seconds in (*found, *few)) * (fewest > 0)
        inner = min(seconds.backward - seconds.weight for seconds in found) + again
        return Amount(forward, backward, weight, inner, min(weight, forward, inner), more)


def least_in_flight(outline: Outline) -> InFlight:
    """The microbatches that every position of an outline keeps in flight at least."""
    if outline.schedule == "interleaved":
        return InFlight(first=0, later=((0,),))
    if outline.schedule == "gpipe":
        return InFlight(first=outline.count, later=((outline.count - 1,),))
    return InFlight(first=1, later=((min(1, outline.count - 1),),))


def works(places: PositionClasses, each: tuple[int, ...]) -> list[Work]:
    """What each position does: on which kinds of devices how many rows, `each` replica's."""

    @cache
    def work(kinds: tuple[tuple[int, ...], ...]) -> Work:
        return frozenset((kind, rows) for own, rows in zip(kinds, each, strict=True) for kind in own)

    return list(map(work, places.kinds))


def _rows(outline: Outline) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows of each replica of a full microbatch and of the last one."""
    return outline.rows_each, replica_rows(outline.last_rows, outline.shares, outline.replicas)


def _summed(each: tuple[Amount, ...], leading: tuple[int, ...] = ()) -> Amounts:
    """With sums over all blocks from each on; the slowest is one of `leading`, where these stand for all."""
    sums = (accumulate(reversed(seconds), initial=0.0) for seconds in zip(*each, strict=True))
    rest = tuple(map(Amount._make, zip(*sums, strict=True)))
    slowest = max(sorted(leading) or range(len(each)), key=lambda b: each[b].work)
    return Amounts(each=each, rest=rest[::-1], slowest=slowest)
