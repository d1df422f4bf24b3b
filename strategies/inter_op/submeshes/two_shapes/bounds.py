"""Lower bounds of all two-shape pipelines at once, by arrays over their parts and the cut between these.

With the blocks before cut j on the first part and those behind it on the second, of each part what
`StageBounds.range_terms` says of them as one block range (ranges that are cut add no less: of gradients, gathers and
scatters those of what no two blocks share), p its positions, X the message at the cut:

    step >= min over j of   fill1 + fill2 + X + max(steady1, steady2) + max(tail1 / p1, tail2 / p2)

    steady   the largest of: its sum / p, all waits for messages among it; that of its slowest block, and ceil(c / p)
             times that of a block of which it has c, on a position that may be the one which sends nothing
    X        all bytes that the block before j makes for later ones, over the links of the devices on both sides, or of
             their nodes, whichever takes longer; between positions of one part the least of any cut
    memory   the positions must hold the range with as few microbatches as are in flight at any of them, of blocks that
             read more than they save what these save
    again    where they only do recomputed: bytes too much times the least seconds that free a byte
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placer.io.memo import remembered
from placer.plans.plan import Layout, Recompute
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.schedule import NEVER, SLACK, Floats, ScheduleTerms
from placer.strategies.inter_op.equivalence import RangeClasses
from placer.strategies.inter_op.submeshes.bounds import RangeTerms, StageBounds
from placer.strategies.inter_op.submeshes.range_ends import heads_and_rests
from placer.strategies.inter_op.submeshes.submesh import DeviceClasses, PlacementClass, PlacementClasses
from placer.strategies.inter_op.submeshes.two_shapes.family import (
    DeviceRange,
    PipelinePart,
    TwoShapePipeline,
    device_ranges,
    joins,
    parts,
)
from placer.strategies.inter_op.submeshes.two_shapes.message_bounds import MessageBounds
from placer.strategies.space.outline import position_counts, recomputes


class _PartTerms(NamedTuple):
    """What a part adds to a step: to the sum of fills, to the steady seconds of its positions on average, to those of
    the slowest one without its messages, to the largest tail."""

    fill: Floats
    steady: Floats
    slowest: Floats
    tail: Floats


class _Stack(NamedTuple):
    """Parts on one device_range, and what they add over all inner cuts: arrays of shape (parts, cuts)."""

    parts: tuple[PipelinePart, ...]
    added: _PartTerms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _End:
    """What the blocks before or behind each inner cut take on a placement.

    `held` bytes, `tight` where they recompute, `dear` seconds that recomputing takes to free one; `slowest` steady and
    `longest` tail of a block; how many are of the `common` class, and the steady seconds of `one`.
    """

    added: RangeTerms
    held: Floats
    tight: Floats
    dear: float
    slowest: Floats
    longest: Floats
    common: Floats
    one: float


class PipelineBounds:
    """The pipelines of one problem with their bounds."""

    def __init__(self, problem: Problem, layouts: tuple[Layout, ...], views: dict[int, RangeClasses]) -> None:
        self.problem = problem
        self.blocks = len(problem.graph.blocks)
        self.device_classes = DeviceClasses(problem.cluster)
        self.positions = frozenset(position_counts(problem))
        chosen = {number: None if number < 0 else layouts[number] for number in views}
        pairs = device_ranges(self.device_classes)
        self.parts = {own: parts(problem, self.device_classes, chosen, own) for own in chain.from_iterable(pairs)}
        self.pairs = tuple(pair for pair in pairs if self.parts[pair[0]] and self.parts[pair[1]])
        self.most = max((part.submesh.replicas for own in self.parts.values() for part in own), default=1)
        placements = tuple(placed for own in self.parts.values() for part in own for placed in part.placements)
        submeshes = tuple(sorted({placed.submesh for placed in placements}))
        places = PlacementClasses(problem, views, self.device_classes, placements)
        self.stage_bounds = StageBounds(places, submeshes, heads_and_rests(self.blocks))
        self.messages = MessageBounds(problem, self.stage_bounds)

    def pipelines(self, terms: ScheduleTerms, ceiling: float) -> Iterator[tuple[float, TwoShapePipeline]]:
        """Every pipeline with a bound below the ceiling under a schedule's terms."""
        added = _Parts(self, terms)
        for pair in self.pairs:
            ahead, behind = added.stack(pair[0], head=True), added.stack(pair[1], head=False)
            if ahead.parts and behind.parts:
                found = self._joined(ahead, behind, terms)
                for a, b in np.argwhere(found < ceiling):
                    if joins(ahead.parts[a], behind.parts[b], self.positions):
                        yield float(found[a, b]), TwoShapePipeline(ahead.parts[a], behind.parts[b])

    def each(self, terms: ScheduleTerms, own: tuple[PipelinePart, ...]) -> tuple[Floats, Floats]:
        """What each block adds at least to fills, and to the steady seconds of its position, on any of these parts."""
        count, last = terms.count, terms.last_rows
        places = tuple(dict.fromkeys(chain.from_iterable(map(self.places, own))))
        full, end = (
            np.min([np.diff(self.stage_bounds.block_sums(place, rows), axis=1) for place in places], axis=0)
            for rows in (terms.rows, last)
        )
        fill, work = full[0] + full[1], full[0] + full[1]
        if terms.schedule == "zero-bubble":
            fill = full[0]
        steady = (count - 2) * work + end[0] + end[1] if count > 1 else 0.0 * work
        return SLACK * fill, SLACK * steady

    def _joined(self, ahead: _Stack, behind: _Stack, terms: ScheduleTerms) -> Floats:
        """The bounds of all pipelines of these parts, shape (first parts, second parts)."""
        fill, steady, slowest, tail = (each[:, None] for each in ahead.added)
        fills, steadies, slowests, tails = behind.added
        message = self.messages.between(ahead.parts, behind.parts, terms.rows)
        waits = terms.stalls(2) * message
        alone = np.array([part.positions for part in ahead.parts])[:, None, None]
        slowest_of_each = np.maximum(steady + waits / alone, slowest), np.maximum(steadies, slowests)
        most = np.maximum(np.maximum(*slowest_of_each), waits)
        step = fill + fills + message + most
        found: Floats = (step + np.maximum(tail, tails)).min(axis=2)
        return SLACK * found

    @remembered
    def saved(self, layout: int, rows: int) -> Floats:
        """Bytes that each block but the last keeps of so many rows where it does not recompute."""
        spans = self.stage_bounds.views[layout].costs.ranges
        return np.array([spans.of(block, block + 1).saved.at(rows) for block in range(self.blocks - 1)], dtype=float)

    @remembered
    def results(self, layout: int, rows: int) -> Floats:
        """Bytes of what products of each block but the last make of so many rows."""
        kept = self.stage_bounds.views[layout].costs.ranges.kept.results
        blocks = self.problem.graph.blocks[:-1]
        return np.array([kept[block.kind].at(rows) for block in blocks], dtype=float)

    @remembered
    def places(self, part: PipelinePart) -> tuple[PlacementClass, ...]:
        """A placement for each kind of placement of a part."""
        return tuple(self._classes[key] for key in dict.fromkeys(map(self.stage_bounds.places.key, part.placements)))

    @cached_property
    def _classes(self) -> dict[object, PlacementClass]:
        """One for all placements that costs cannot tell apart."""
        return {self.stage_bounds.places.key(place.placement): place for place in self.stage_bounds.places.every}

    @cached_property
    def common(self) -> NDArray[np.bool_]:
        """Which blocks are of the commonest class."""
        classes = self.stage_bounds.views[min(self.stage_bounds.views)].classes
        ((most, _),) = Counter(classes).most_common(1)
        return np.array([own == most for own in classes])


class _Parts:
    """What parts of pipelines add under one schedule's terms; remembers what they share."""

    def __init__(self, bounds: PipelineBounds, terms: ScheduleTerms) -> None:
        self.bounds = bounds
        self.terms = terms
        self.blocks = bounds.blocks
        self.stage_bounds = bounds.stage_bounds

    @remembered
    def stack(self, device_range: DeviceRange, *, head: bool) -> _Stack:
        """The parts on a device range, before the cut or behind it, and what they add at least, by cut; `NEVER` where
        one has too few blocks or bytes."""
        own = tuple(part for part in self.bounds.parts[device_range] if part.submesh.replicas <= self.terms.rows)
        return _Stack(own, self._added(own, head=head) if own else _PartTerms(*np.zeros((4, 0, self.blocks - 1))))

    def _added(self, own: tuple[PipelinePart, ...], *, head: bool) -> _PartTerms:
        """The least over the placements of each part, and of its inner messages."""
        places = [self.bounds.places(part) for part in own]
        each = [part.positions for part, its in zip(own, places, strict=True) for _ in its]
        begins = np.cumsum([0, *map(len, places[:-1])])
        made = self._at(list(chain.from_iterable(places)), np.array(each)[:, None], head=head)
        fill, steady, slowest, tail = (np.minimum.reduceat(amount, begins) for amount in made)
        positions, blocks = np.array([part.positions for part in own])[:, None], np.arange(1, self.blocks)
        inner = (positions - 1) * np.array([self._message(part, head=head) for part in own])
        fill = np.where((blocks if head else blocks[::-1]) < positions, NEVER, fill + inner)
        return _PartTerms(fill, steady + self.terms.stalls(2) * inner / positions, slowest, tail)

    def _message(self, part: PipelinePart, *, head: bool) -> Floats:
        """The least seconds on and back between two positions of a part, by cut."""
        messages = self.bounds.messages
        if part.positions == 1:
            return np.zeros(self.blocks - 1)
        return messages.within(messages.inner(part), self.terms.rows, head=head)

    def _at(self, places: Sequence[PlacementClass], positions: NDArray[np.int_], *, head: bool) -> _PartTerms:
        """What all blocks of parts add at their positions, were they all like these placements."""
        ends = [self._end(place, head=head) for place in places]
        room = positions * np.array([place.room for place in places])[:, None]
        fill, steady, tail = (np.array(each) for each in zip(*(end.added for end in ends), strict=True))
        held, tight, slowest, longest, common = (
            np.array([getattr(end, name) for end in ends]) for name in ("held", "tight", "slowest", "longest", "common")
        )
        dear, one = (np.array([getattr(end, name) for end in ends])[:, None] for name in ("dear", "one"))
        more = np.maximum(0.0, held - room) * dear
        fill, steady = fill + more, steady + max(0, self.terms.count - 2) * more
        fill = np.where(tight <= room, fill, NEVER)
        slowest = np.maximum(slowest, np.ceil(common / positions) * one)
        return _PartTerms(fill, steady / positions, slowest, np.maximum(tail / positions, longest))

    @remembered
    def _range_terms(self, place: PlacementClass) -> dict[Recompute, RangeTerms]:
        return self.stage_bounds.range_terms(place, self.terms)

    @remembered
    def _end(self, place: PlacementClass, *, head: bool) -> _End:
        """What blocks before or behind each cut take on a placement, however many positions are like it."""
        terms, common = self.terms, self.bounds.common
        cuts, added = self.blocks - 1, self._range_terms(place)
        own = slice(None, cuts) if head else slice(cuts, 2 * cuts)
        count, choices = terms.count, recomputes(self.bounds.problem)
        in_flight = count if terms.schedule == "gpipe" else min(count, 1 + head)
        held = [SLACK * self.stage_bounds.bytes(place, terms, in_flight, again=again)[own] for again in choices]
        tight = held[-1]
        if len(choices) > 1:
            tight = tight - in_flight * self.stage_bounds.spared(place, terms, choices[-1])[own]
        least = added[choices[0]]
        steady, tail = least.steady[2 * cuts :], least.tail[2 * cuts :]
        slowest, longest, most = (
            of.accumulate(each)[:-1] if head else of.accumulate(each[::-1])[-2::-1]
            for of, each in ((np.maximum, steady), (np.maximum, tail), (np.add, common.astype(np.float64)))
        )
        dear = self._dear(place, in_flight) if len(choices) > 1 else 0.0
        return _End(
            added=RangeTerms(*(each[own] for each in least)), held=held[0], tight=tight, dear=dear, slowest=slowest,
            longest=longest, common=most, one=float(steady[common].min()),
        )  # fmt: skip

    def _dear(self, place: PlacementClass, in_flight: int) -> float:
        """Seconds of running again that free a byte at least: a forward all that is saved, one but for its products all
        that is saved but their results."""
        rows, layout = -(-self.terms.rows // place.submesh.replicas), place.submesh.layout
        _, _, _, again, selective = np.diff(self.stage_bounds.block_sums(place, self.terms.rows), axis=1)[:, :-1]
        saved, results = self.bounds.saved(layout, rows), self.bounds.results(layout, rows)
        seconds, freed = np.concatenate([again, selective]), in_flight * np.concatenate([saved, saved - results])
        return float((seconds[freed > 0] / freed[freed > 0]).min()) if (freed > 0).any() else 0.0
