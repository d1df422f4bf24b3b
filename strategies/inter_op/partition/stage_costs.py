"""What each block range costs as a stage of an outline: the terms of the step time, and whether it fits.

In: a Problem and an Outline. Out: `StageOption`s for `chain_dp` and `InterleavedOption`s for `interleaved_*`, all from
`Costs.stage_cost`, `timing.step.terms` and `placer.costs.memory.peak`; and lower bounds that hold for every way to cut.

Like block ranges on like places (`block ranges`) cost the same and are priced once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import islice

from placer.costs.memory.in_flight import InFlight, microbatches_in_flight
from placer.costs.memory.peak import StageMemory, position_memory
from placer.costs.timing.step import StageCost, Terms, terms
from placer.io.memo import once
from placer.plans.plan import BY_FSDP, Recompute, Stage
from placer.strategies.inter_op.bounds.outline import OutlineBounds, least_in_flight
from placer.strategies.inter_op.equivalence import PositionClasses
from placer.strategies.inter_op.partition.chain_dp import RestBounds, StageOption
from placer.strategies.inter_op.partition.interleaved_branch_bound import Interleaved, InterleavedOption
from placer.strategies.space.outline import Outline, pinned_stage, recomputes, stage_allowed


class OutlineCosts:
    """Prices of the block ranges of blocks of one outline; remembers them."""

    def __init__(self, bounds: OutlineBounds, places: PositionClasses, outline: Outline) -> None:
        self.problem = bounds.problem
        self.costs = bounds.ranges.costs
        self.ranges = bounds.ranges
        self.bounds = bounds
        self.places = places
        self.outline = outline
        self.pinned = pinned_stage(self.problem)
        self._terms: dict[tuple[int, int, Recompute], Terms] = {}
        self._options: dict[tuple[int, int], tuple[StageOption, ...] | None] = {}
        self._interleaved: dict[tuple[int, int], tuple[InterleavedOption, ...] | None] = {}

    @cached_property
    def in_flight(self) -> tuple[InFlight, ...]:
        """The microbatches in flight at each position."""
        made = self.outline
        return microbatches_in_flight(made.schedule, made.positions, made.stages, made.count)

    def options(self, stage: int, first: int, last: int) -> tuple[StageOption, ...] | None:
        """What stage `stage` on blocks first..last-1 adds, with the first recompute choice that fits and is allowed.

        None where no longer run can fit either.
        """
        if not stage_allowed(self.pinned, stage, first, last):
            return ()
        key = (self._place[stage], self.ranges.number(first, last))
        return once(self._options, key, self._chosen, stage, first, last)

    def _chosen(self, stage: int, first: int, last: int) -> tuple[StageOption, ...] | None:
        # Of the choices that fit the one of fewest seconds is best in everything else too.
        fitting = (again for again in recomputes(self.problem) if self._fits(stage, first, last, again))
        made = tuple(self._option(stage, first, last, again) for again in islice(fitting, 1))
        return made or (None if self._too_long(stage, first, last) else ())

    def interleaved_options(self, stage: int, first: int, last: int) -> tuple[InterleavedOption, ...] | None:
        """The same for schedules with several stages per position, with what memory needs."""
        lengths = self.outline.lengths(len(self.problem.graph.blocks))
        if last - first < lengths.start or not stage_allowed(self.pinned, stage, first, last):
            return ()
        if last - first >= lengths.stop:
            return None
        key = (self._room[stage], self.ranges.number(first, last))
        return once(self._interleaved, key, self._interleaved_chosen, stage, first, last)

    def _interleaved_chosen(self, stage: int, first: int, last: int) -> tuple[InterleavedOption, ...] | None:
        if self._too_long(stage, first, last):
            return None
        return tuple(self._interleaved_option(stage, first, last, again) for again in recomputes(self.problem))

    def terms(self, stage: int, first: int, last: int, recompute: Recompute) -> Terms:
        """Fill, steady and tail of a stage."""
        key = (self._site[stage], self.ranges.number(first, last), recompute)
        return once(self._terms, key, self._made_terms, stage, first, last, recompute)

    def _made_terms(self, stage: int, first: int, last: int, recompute: Recompute) -> Terms:
        made, cost = self.outline, self.cost(stage, first, last, recompute)
        return terms(cost, made.schedule, positions=made.positions, turns=made.virtual, microbatches=made.count)

    def cost(self, stage: int, first: int, last: int, recompute: Recompute) -> StageCost:
        """The `StageCost` of a stage."""
        made, devices = self.outline, self.places.devices
        following = devices[(stage + 1) % made.positions] if stage + 1 < made.stages else ()
        placed = Stage(
            first=first, last=last, devices=devices[stage % made.positions], shares=made.shares,
            sharding=made.sharding, recompute=recompute, degree=self.costs.degree,
        )  # fmt: skip
        return self.costs.stage_cost(
            placed, following=following, leading=devices[0], rows=made.microbatch, last_rows=made.last_rows,
            bucket_bytes=self.problem.pins.bucket,
        )  # fmt: skip

    def held(self, first: int, last: int, recompute: Recompute, rows: int) -> StageMemory:
        """Bytes of a run as one stage on a replica that takes `rows` rows of a full microbatch."""
        return self.ranges.held(first, last, recompute, rows, self.outline)

    def loop(self) -> Interleaved:
        """The outline as a problem for `best_interleaved`."""
        rests = self.rests
        groups, grouped = self._groups
        return Interleaved(
            positions=self.outline.positions, turns=self.outline.virtual, options=self.interleaved_options,
            peaks=tuple(own.later for own in self.in_flight),
            rooms=tuple(tuple(room for _, room in own) for own in self._loads), needs=self.bounds.bytes(self.outline),
            fill_bounds=rests.fill, steady_bounds=rests.steady, groups=groups, grouped=grouped,
        )  # fmt: skip

    @cached_property
    def rests(self) -> RestBounds:
        """Lower bounds for `chain`: seconds of the blocks from j on, and how far the first stages must reach."""
        rest = self.bounds.rest(self.outline, self.places)
        return RestBounds(
            fill=tuple(each.fill for each in rest), steady=tuple(each.steady for each in rest), reached=self._reached
        )

    @cached_property
    def _reached(self) -> tuple[int, ...]:
        """The fewest blocks the first s stages must take, lest the rest not fit the positions that are left."""
        needs, room = self.bounds.bytes(self.outline), [0]
        for capacity in reversed(self.places.capacity):
            room.append(room[-1] + max(0, capacity))
        return tuple(next(j for j, need in enumerate(needs) if need <= left) for left in reversed(room))

    @cached_property
    def _loads(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per position what must fit: rows of a full microbatch, and bytes."""
        return self.places.loads(self.outline)

    @cached_property
    def _site(self) -> tuple[int, ...]:
        """The number of each stage's devices and way onward; equal numbers take the same seconds."""
        places, positions, stages = self.places, self.outline.positions, self.outline.stages
        return _numbered(
            (places.own[stage % positions], places.onward[stage % positions] if stage + 1 < stages else None)
            for stage in range(stages)
        )

    @cached_property
    def _place(self) -> tuple[int, ...]:
        """The same with what must fit there and what is in flight; equal numbers also hold the same."""
        positions = self.outline.positions
        return _numbered(
            (site, self._loads[stage % positions], self.in_flight[stage % positions])
            for stage, site in enumerate(self._site)
        )

    @cached_property
    def _room(self) -> tuple[int, ...]:
        """The same whatever is in flight."""
        return _numbered((site, self._loads[s % self.outline.positions]) for s, site in enumerate(self._site))

    @cached_property
    def _groups(self) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Tied parameters that sharded stages of one position may not both hold, and those each block uses."""
        graph = self.problem.graph
        tied = sorted(graph.tied.items()) if self.outline.sharding in BY_FSDP else []
        blocks = range(len(graph.blocks))
        return len(tied), tuple(tuple(g for g, (_, users) in enumerate(tied) if b in users) for b in blocks)

    def _too_long(self, stage: int, first: int, last: int) -> bool:
        """Whether neither this block range nor a longer one can fit its position."""
        position, made = stage % self.outline.positions, self.outline
        least = least_in_flight(made) if made.virtual > 1 else self.in_flight[position]
        return self.bounds.run_bytes(made, first, last, least) > self.places.capacity[position]

    def _option(self, stage: int, first: int, last: int, recompute: Recompute) -> StageOption:
        part = self.terms(stage, first, last, recompute)
        return StageOption(part.fill, part.steady, part.tail, recompute)

    def _fits(self, stage: int, first: int, last: int, recompute: Recompute) -> bool:
        """Whether the position of a lone stage holds it."""
        position = stage % self.outline.positions
        return all(
            position_memory((self.held(first, last, recompute, rows),), self.in_flight[position]).total <= room
            for rows, room in self._loads[position]
        )

    def _interleaved_option(self, stage: int, first: int, last: int, recompute: Recompute) -> InterleavedOption:
        part = self.terms(stage, first, last, recompute)
        held = [self.held(first, last, recompute, rows) for rows, _ in self._loads[stage % self.outline.positions]]
        return InterleavedOption(
            part.fill, part.steady, part.tail, recompute, held[0].state + held[0].gradients,
            tuple((own.living, own.temporary) for own in held), held[0].closing, held[0].updating,
            part.rounds, part.turn,
        )  # fmt: skip


def _numbered(keys: Iterable[object]) -> tuple[int, ...]:
    """Of each key a number, equal for equal keys."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)
