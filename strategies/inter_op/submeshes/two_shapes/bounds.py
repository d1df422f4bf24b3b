"""Lower bounds of all lines of one pace at once, by arrays over their parts and the cut between these.

With the blocks before cut j on the first part and those behind it on the second, of each part what `Floors.terms` says
of them as one run (runs that are cut add no less), p its positions, X the message at the cut:

    step >= min over j of   fill1 + fill2 + X + max(steady1, steady2) + max(tail1 / p1, tail2 / p2)

    steady   the largest of: its sum / p; that of its slowest block; ceil(c / p) times that of a block of which it has c
    X        all bytes that the block before j makes for later ones, over the links of the devices on both sides, or of
             their nodes, whichever takes longer; between positions of one part the least of any cut
    memory   the positions must hold the run with as few microbatches as are alive at any of them
    again    where they only do recomputed: bytes too much times the least seconds that free a byte
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placer.costs.timing.step import stalls
from placer.plans.plan import Layout
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.schedule import SLACK
from placer.strategies.inter_op.equivalence import Runs
from placer.strategies.inter_op.submeshes.bounds import Floors, Pace, Parts
from placer.strategies.inter_op.submeshes.places import Place, ShapePlaces
from placer.strategies.inter_op.submeshes.run_arrays import NEVER, Floats, heads_and_rests
from placer.strategies.inter_op.submeshes.submesh import Grounds
from placer.strategies.inter_op.submeshes.two_shapes.family import Line, Part, Stretch, joins, parts, stretches
from placer.strategies.inter_op.submeshes.two_shapes.message_bounds import LineWays
from placer.strategies.space.outline import position_counts, recomputes


class _Stack(NamedTuple):
    """Parts on one stretch, and their terms over all inner cuts: arrays of shape (parts, cuts)."""

    parts: tuple[Part, ...]
    terms: Parts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _End:
    """What the blocks before or behind each inner cut take on a place.

    `held` bytes, `tight` where they recompute, `dear` seconds that recomputing takes to free one; `slowest` steady and
    `longest` tail of a block; how many are of the `common` class, and the steady seconds of `one`.
    """

    terms: Parts
    held: Floats
    tight: Floats
    dear: float
    slowest: Floats
    longest: Floats
    common: Floats
    one: float


class LineFloors:
    """The lines of one problem with their bounds."""

    def __init__(self, problem: Problem, layouts: tuple[Layout, ...], views: dict[int, Runs]) -> None:
        self.problem = problem
        self.blocks = len(problem.graph.blocks)
        self.grounds = Grounds(problem.cluster)
        self.positions = frozenset(position_counts(problem))
        chosen = {number: None if number < 0 else layouts[number] for number in views}
        pairs = stretches(self.grounds)
        self.parts = {own: parts(problem, self.grounds, chosen, own) for own in chain.from_iterable(pairs)}
        self.pairs = tuple(pair for pair in pairs if self.parts[pair[0]] and self.parts[pair[1]])
        self.most = max((part.shape.replicas for own in self.parts.values() for part in own), default=1)
        spots = tuple(spot for own in self.parts.values() for part in own for spot in part.spots)
        shapes = tuple(sorted({spot.shape for spot in spots}))
        ends = heads_and_rests(self.blocks)
        self.floors = Floors(ShapePlaces(problem, views, self.grounds, spots), shapes, ends)
        self.ways = LineWays(problem, self.floors)
        self._quick: dict[tuple[int, str], float] = {}
        self._places: dict[Part, tuple[Place, ...]] = {}
        self._terms: dict[Place, dict[bool, Parts]] = {}
        self._ends: dict[tuple[Place, bool], _End] = {}
        self._made: dict[object, Parts] = {}

    def bounds(self, pace: Pace, ceiling: float) -> Iterator[tuple[float, Line]]:
        """Every line with a bound below the ceiling under a pace."""
        self._terms, self._ends, self._made = {}, {}, {}
        stacks: dict[tuple[Stretch, bool], _Stack] = {}
        for pair in self.pairs:
            for stretch, head in zip(pair, (True, False), strict=True):
                if (stretch, head) not in stacks:
                    stacks[stretch, head] = self._stack(stretch, pace, head=head)
            ahead, behind = stacks[pair[0], True], stacks[pair[1], False]
            if ahead.parts and behind.parts:
                found = self._joined(ahead, behind, pace)
                for a, b in np.argwhere(found < ceiling):
                    if joins(ahead.parts[a], behind.parts[b], self.positions):
                        yield float(found[a, b]), Line(ahead.parts[a], behind.parts[b])

    def quick(self, pace: Pace) -> float:
        """No line under a pace is faster: every block where it costs least."""
        key = pace.rows, pace.schedule
        if key not in self._quick:
            self._quick[key] = self.floors.quick(*key)
        return self._quick[key]

    def each(self, pace: Pace, own: tuple[Part, ...]) -> tuple[Floats, Floats]:
        """What each block adds at least to fills, and to the steady seconds of its position, on any of these parts."""
        count, last = pace.count(self.problem.rows), self.problem.rows % pace.rows or pace.rows
        places = tuple(dict.fromkeys(chain.from_iterable(map(self._of, own))))
        full, end = (
            np.min([np.diff(self.floors.passes(place, rows), axis=1) for place in places], axis=0)
            for rows in (pace.rows, last)
        )
        fill, work = full[0] + full[1], full[0] + full[1]
        if pace.schedule == "zero-bubble":
            fill = full[0]
        steady = (count - 2) * work + end[0] + end[1] if count > 1 else 0.0 * work
        return SLACK * fill, SLACK * steady

    def _joined(self, ahead: _Stack, behind: _Stack, pace: Pace) -> Floats:
        """The bounds of all lines of these parts, shape (first parts, second parts)."""
        (fill, steady, tail), (fills, steadies, tails) = (
            (terms.fill[:, None] if first else terms.fill, terms.steady[:, None] if first else terms.steady,
             terms.tail[:, None] if first else terms.tail)
            for terms, first in ((ahead.terms, True), (behind.terms, False))
        )  # fmt: skip
        message = self.ways.between(ahead.parts, behind.parts, pace.rows)
        waits = self._waits(pace) * message
        alone = np.array([part.positions for part in ahead.parts])[:, None, None]
        most = np.maximum(np.maximum(steady + waits / alone, waits), steadies)
        step = fill + fills + message + most
        found: Floats = (step + np.maximum(tail, tails)).min(axis=2)
        return SLACK * found

    def _stack(self, stretch: Stretch, pace: Pace, *, head: bool) -> _Stack:
        own = tuple(part for part in self.parts[stretch] if part.shape.replicas <= pace.rows)
        made = [self._part(part, pace, head=head) for part in own]
        return _Stack(own, Parts(*(np.array([getattr(each, name) for each in made]) for name in Parts._fields)))

    def _part(self, part: Part, pace: Pace, *, head: bool) -> Parts:
        """What a part adds at least, by cut; `NEVER` where it has too few blocks or bytes."""
        key = self._of(part), part.positions, self.ways.inner(part), head
        if key not in self._made:
            self._made[key] = self._least(part, pace, head=head)
        return self._made[key]

    def _least(self, part: Part, pace: Pace, *, head: bool) -> Parts:
        first, *others = (self._at(place, part.positions, pace, head=head) for place in self._of(part))
        for other in others:
            first = Parts(*map(np.minimum, first, other))
        if part.positions == 1:
            return first
        each_cut, held = self.ways.within(part, pace.rows), np.arange(1, self.blocks)
        inner: Floats = (part.positions - 1) * (_before(each_cut) if head else _behind(each_cut))
        fill = np.where((held if head else held[::-1]) < part.positions, NEVER, first.fill + inner)
        return Parts(fill, first.steady + self._waits(pace) * inner / part.positions, first.tail)

    def _waits(self, pace: Pace) -> int:
        """How often the position before a message waits for it, at least."""
        count = pace.count(self.problem.rows)
        return stalls(pace.schedule, 2, count) if count > 1 else 0

    def _of(self, part: Part) -> tuple[Place, ...]:
        """A place for each kind of spot of a part."""
        if part not in self._places:
            kinds = dict.fromkeys(map(self.floors.places.key, part.spots))
            self._places[part] = tuple(self._kinds[kind] for kind in kinds)
        return self._places[part]

    @cached_property
    def _kinds(self) -> dict[object, Place]:
        """One place for all spots that costs cannot tell apart."""
        return {self.floors.places.key(place.spot): place for place in self.floors.places.every}

    def _at(self, place: Place, positions: int, pace: Pace, *, head: bool) -> Parts:
        """The terms of all blocks of a part at its positions, were they all like this place."""
        if (place, head) not in self._ends:
            self._ends[place, head] = self._end(place, pace, head=head)
        end, room = self._ends[place, head], positions * place.room
        fill, steady, tail = end.terms
        if end.dear:
            more = np.maximum(0.0, end.held - room) * end.dear
            fill, steady = fill + more, steady + max(0, pace.count(self.problem.rows) - 2) * more
        fill = np.where(end.tight <= room, fill, NEVER)
        slowest = np.maximum(end.slowest, np.ceil(end.common / positions) * end.one)
        return Parts(fill, np.maximum(steady / positions, slowest), np.maximum(tail / positions, end.longest))

    def _end(self, place: Place, pace: Pace, *, head: bool) -> _End:
        """What blocks before or behind each cut take on a place, however many positions are like it."""
        if place not in self._terms:
            self._terms[place] = self.floors.terms(place, pace)
        cuts, terms = self.blocks - 1, self._terms[place]
        own = slice(None, cuts) if head else slice(cuts, 2 * cuts)
        count, choices = pace.count(self.problem.rows), recomputes(self.problem)
        alive = count if pace.schedule == "gpipe" else min(count, 1 + head)
        held = [SLACK * self.floors.bytes(place, pace, alive, again=again)[own] for again in choices]
        least = terms[choices[0]]
        steady, tail = least.steady[2 * cuts :], least.tail[2 * cuts :]
        common = self._common.astype(np.float64)
        slowest, longest, most = (
            of.accumulate(each)[:-1] if head else of.accumulate(each[::-1])[-2::-1]
            for of, each in ((np.maximum, steady), (np.maximum, tail), (np.add, common))
        )
        dear = self._dear(place, pace, alive) if len(choices) == 2 else 0.0
        return _End(
            terms=Parts(*(each[own] for each in least)), held=held[0], tight=held[-1], dear=dear, slowest=slowest,
            longest=longest, common=most, one=float(steady[self._common].min()),
        )  # fmt: skip

    def _dear(self, place: Place, pace: Pace, alive: int) -> float:
        """Seconds of a forward that free a byte at least."""
        shape = place.spot.shape
        rows = -(-pace.rows // shape.replicas)
        spans = self.floors.costs(shape).ranges
        forward = np.diff(self.floors.passes(place, pace.rows)[0])
        saved = [alive * spans.of(block, block + 1).saved.at(rows) for block in range(self.blocks - 1)]
        return min((float(a) / b for a, b in zip(forward, saved, strict=False) if b), default=0.0)

    @cached_property
    def _common(self) -> NDArray[np.bool_]:
        """Which blocks are of the commonest class."""
        kinds = np.array([block.kind for block in self.problem.graph.blocks])
        values, counts = np.unique(kinds, return_counts=True)
        found: NDArray[np.bool_] = kinds == values[counts.argmax()]
        return found


def _before(each: Floats) -> Floats:
    """The least of what is before each; of the first 0."""
    found: Floats = np.append(0.0, np.minimum.accumulate(each)[:-1])
    return found


def _behind(each: Floats) -> Floats:
    """The same of what is behind each."""
    return _before(each[::-1])[::-1]
