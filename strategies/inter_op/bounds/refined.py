"""A second lower bound of an outline, nearer to the truth: what its devices and its memory enforce, whatever the cuts.

For `c` blocks of the commonest class (blocks alike that hold as much no other one holds), with what one of them adds to
a position (f, s: fill and steady; f', s' with its forward recomputed, in the way that takes least) and S stages:

    messages    every stage but the last sends at least the least that crosses between two blocks: X
    gathers     of sharded state, over all stages what one stage of all blocks shows, copies too, and for every cut
                between two blocks the rest of the second one's gather, which nothing hides; scatters what they take
                beyond B. Of parameters that several blocks read, which the root of a stage with several of them holds,
                nothing but where there is one stage
    memory      position j holds at most n_j blocks, n'_j of them recomputed in the way that keeps least: see `memory`
    recompute   at least r = c - sum n_j blocks are recomputed; c > sum n'_j: no plan
    steady      at least T with  sum over j of max(min(n_j, (T - X_j) / s_j), min(n'_j, (T - X_j) / s'_j)) >= c
                and at least the mean of all blocks with r recomputed ones, a position that takes q_j times as long at
                any block as the fastest one counting as 1 / q_j
    scatters    as gathers; each follows those of the stages behind it, of several turns those of its position
    tail        the position with most such blocks has ceil(c / p) of them; optimizer of what each holds alone
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from placer.cluster.cluster import Device
from placer.costs.communication.network import LinkCost
from placer.costs.memory.parameters import ParameterCounts
from placer.costs.timing.after_backward import accumulate_seconds, update_seconds
from placer.io.memo import once, remembered
from placer.plans.plan import BY_FSDP, Sharding, replica_rows
from placer.strategies.inter_op.bounds.memory import BlockRoom, room
from placer.strategies.inter_op.bounds.outline import Amounts, OutlineBounds
from placer.strategies.inter_op.bounds.schedule import NEVER, SLACK, Amount, Floats, LowerBound, ScheduleTerms
from placer.strategies.inter_op.equivalence import PositionClasses
from placer.strategies.space.outline import Outline

# Halvings of the steady seconds.
HALVINGS = 20

T = TypeVar("T")


class Shown(NamedTuple):
    """What collectives of sharded state add at least to all fills, to all steadies, and as scatters to the step."""

    fill: float
    steady: float
    scatter: float


HIDDEN = Shown(0.0, 0.0, 0.0)


class Added(NamedTuple):
    """What adding to gradients adds to the terms of a block (`placer.costs.timing.step`)."""

    fill: float
    steady: float
    turn: float


def _scattered(shown: Shown, outline: Outline) -> float:
    """What scatters add at least to a step of an outline."""
    return shown.scatter / (outline.positions if outline.virtual > 1 else 1)


class _Pairs(NamedTuple):
    """What gathers of one pass show: all pairs of neighbours, the first block, and what cuts add, least first."""

    shown: float
    hidden: Floats
    first: float

    def over(self, stages: int) -> float:
        """Seconds over so many stages: the pairs parted by a cut are those to which it matters least."""
        return self.shown + float(self.hidden[: stages - 1].sum()) + self.first


class _Least(NamedTuple):
    """What gathers show at least, forward and backward, and what scatters add at least; those of the root apart."""

    forward: _Pairs
    backward: _Pairs
    scatter: float
    root: tuple[float, float]


class RefinedBounds:
    """The second bound of the outlines of one `OutlineBounds`."""

    def __init__(self, bounds: OutlineBounds) -> None:
        self.bounds = bounds
        self.problem = bounds.problem
        self.costs = bounds.ranges.costs
        self.gathers = _GatherBounds(bounds)
        self._ratios: dict[tuple[int, int, bool], float] = {}

    def quick(self, outline: Outline, places: PositionClasses) -> float:
        """A first bound of the same plans as `step`, many times as fast; `NEVER` where the model fits nowhere."""
        if self.bounds.all_bytes(outline) > places.room:
            return NEVER
        return self._quick(outline, places, HIDDEN)

    def step(self, outline: Outline, places: PositionClasses, ceiling: float = NEVER) -> float:
        """No plan of the outline is estimated faster; `NEVER` where its memory holds none.

        Once it is seen to reach `ceiling`, no nearer bound is looked for.
        """
        if self.bounds.all_bytes(outline) > places.room:
            return NEVER
        if ceiling < NEVER:
            quick = self._quick(outline, places, self.gathers.shown(outline, places))
            if quick >= ceiling:
                return quick
        held = room(self.bounds, outline, places)
        count = self.bounds.commonest[1]
        if np.maximum(held.kept, held.again).sum() < count:
            return NEVER
        return self._seconds(outline, places, held, again=max(0, count - int(held.kept.sum())))

    def _quick(self, outline: Outline, places: PositionClasses, shown: Shown) -> float:
        """What all blocks take at least, whatever fits: without recompute for want of memory."""
        full, last = self.bounds.least(outline, places)
        terms = ScheduleTerms.of(outline)
        whole = terms.bound(outline.positions, full.rest[0], last.rest[0])
        block, count = self.bounds.commonest
        adding = self._adding(outline, block)
        fill = whole.fill + ((outline.stages - 1) * self._message(outline, places) + shown.fill) / outline.virtual
        fill += count * adding.fill
        mean = self._mean(outline, places, whole.steady, count * adding.steady + shown.steady)
        one = terms.bound(outline.positions, full.each[block], last.each[block])
        steady = max(mean, -(-count // outline.positions) * (one.steady + adding.steady))
        inner = terms.inner(fill, steady, self._turn(outline, places, whole, one, adding))
        return fill + SLACK * (inner + _scattered(shown, outline) + self._tail(outline, places)) + places.fixed

    def _turn(
        self, outline: Outline, places: PositionClasses, whole: LowerBound[float], one: LowerBound[float], adding: Added
    ) -> float:
        """What the slowest position takes at least for one of its turns, of `whole` the model, of commonest blocks each
        `one`; without collectives of sharded state."""
        terms, count = ScheduleTerms.of(outline), self.bounds.commonest[1]
        mean = self._mean(outline, places, terms.turn(whole), count * adding.turn)
        return max(mean, -(-count // outline.positions) * (terms.turn(one) + adding.turn))

    def _mean(self, outline: Outline, places: PositionClasses, steady: float, added: float) -> float:
        """What the slowest position takes at least, for it is no faster than the mean of all; `added` anywhere."""
        if self.costs.block_times.uniform:
            return (steady + added) / outline.positions
        slowness = self._slowness(outline, places)
        return (steady + added / float(slowness.max())) / float((1 / slowness).sum())

    def _seconds(self, outline: Outline, places: PositionClasses, held: BlockRoom, *, again: int) -> float:
        """The bound with at least `again` recomputed blocks."""
        terms, p, v = ScheduleTerms.of(outline), outline.positions, outline.virtual
        full, last = self.bounds.least(outline, places)
        block, count = self.bounds.commonest
        extra = [_backward(amounts.each[block].again) for amounts in (full, last)]
        more = [_backward(again * amount.backward) for amount in extra]
        whole = terms.bound(p, full.rest[0].plus(more[0]), last.rest[0].plus(more[1]))
        message = self._message(outline, places)
        shown = self.gathers.shown(outline, places)
        adding = self._adding(outline, block)
        fill = whole.fill + ((outline.stages - 1) * message + shown.fill) / v + count * adding.fill
        one, once = (pace + adding.steady for pace in self._paces(outline, places))
        mean = self._mean(outline, places, whole.steady, count * adding.steady + shown.steady)
        stalled = terms.stalls(p) * message / v
        waits = np.where(np.arange(p) < p - 1, stalled, 0.0)
        steady = _shared(count, held, one, once, waits, mixed=v > 1, least=mean)
        plain = terms.bound(p, full.each[block], last.each[block])
        inner = terms.inner(fill, steady, self._turn(outline, places, whole, plain, adding))
        return fill + SLACK * (inner + _scattered(shown, outline) + self._tail(outline, places)) + places.fixed

    def _paces(self, outline: Outline, places: PositionClasses) -> tuple[Floats, ...]:
        """Steady seconds of a block of the commonest class at each position, and with its forward recomputed."""
        terms, block = ScheduleTerms.of(outline), self.bounds.commonest[0]

        def seconds(full: Amounts, last: Amounts) -> tuple[float, float]:
            own = full.each[block], last.each[block]
            again = tuple(amount.plus(_backward(amount.again)) for amount in own)
            once, twice = (terms.bound(outline.positions, *pair).steady for pair in (own, again))
            return once, twice

        found = np.array(self._each(outline, places, seconds))
        return found[:, 0], found[:, 1]

    def _slowness(self, outline: Outline, places: PositionClasses) -> Floats:
        """Of each position how many times as long any block takes there as where it takes least, at least."""
        least = self.bounds.least(outline, places)
        split = outline.schedule == "zero-bubble"

        def ratio(full: Amounts, last: Amounts) -> float:
            # By identity: the amounts are those that `OutlineBounds` keeps.
            each = ((full, least[0], split), (last, least[1], False))
            return min(once(self._ratios, (id(a), id(b), also), _ratio, a, b, split=also) for a, b, also in each)

        return np.array(self._each(outline, places, ratio))

    def _each(self, outline: Outline, places: PositionClasses, of: Callable[[Amounts, Amounts], T]) -> list[T]:
        """`of` the seconds at each position, asked once for positions that do the same."""
        if self.costs.block_times.uniform:
            return [of(*self.bounds.least(outline, places))] * outline.positions
        known: dict[tuple[int, int], T] = {}
        return [once(known, (id(full), id(last)), of, full, last) for full, last in self.bounds.at(outline, places)]

    def _message(self, outline: Outline, places: PositionClasses) -> float:
        """Seconds every stage but the last spends at least on messages, per microbatch, both ways."""
        sent, returned = self.costs.ranges.crossing.least_sent
        used = places.links_round if outline.virtual > 1 else places.links_on
        if not any(sent) or not used:
            return 0.0
        return self._cheapest(used, *(size.at(outline.most_rows) for size in (sent, returned) if any(size)))

    @remembered
    def _cheapest(self, used: tuple[LinkCost, ...], *sizes: int) -> float:
        """Seconds of messages of these sizes over the best of these ways."""
        return SLACK * min(sum(map(way.seconds, sizes)) for way in used)

    def _tail(self, outline: Outline, places: PositionClasses) -> float:
        """Seconds of the tail of the position where it is longest."""
        p, costs = outline.positions, self.costs
        if outline.sharding in BY_FSDP:
            held = costs.ranges.of(0, len(self.problem.graph.blocks)).counts
            return self._update(held._replace(tensors=0), outline.replicas) / p
        block, count = self.bounds.commonest
        held = _times(self.bounds.classes[block][1], -(-count // p))
        divided = outline.sharding == "optimizer"
        update = self._update(held, outline.replicas if divided else 1)
        size = held.trainable * costs.numerics.weight_bytes
        if divided:
            update += min(costs.after_backward.gather(devices, size) for devices in places.distinct)
        if outline.replicas < 2 or not size or outline.stages == 1:  # a lone stage reduces beside its last backward
            return update
        pinned = self.problem.pins.bucket
        return update + min(costs.after_backward.fused(devices, size, pinned) for devices in places.distinct)

    def _update(self, held: ParameterCounts, parts: int) -> float:
        """Seconds of updating what is held on the device that does it soonest: few launches may beat fast memory."""
        return min(update_seconds(held, self.costs.numerics, self.costs.priced, chip, parts) for chip in self._chips)

    def _adding(self, outline: Outline, block: int) -> Added:
        """What adding a block's gradients to earlier ones adds to the terms of a step, on the fastest device."""
        held, m, v = self.bounds.classes[block][1], outline.count, outline.virtual
        if m == 1:
            return Added(0.0, 0.0, 0.0)
        seconds = min(accumulate_seconds(held, self.costs.numerics, chip) for chip in self._chips)
        if outline.schedule == "zero-bubble":
            return Added(0.0, (m - 1) * seconds, 0.0)
        return Added(seconds / v, (m - 1 - 1 / v) * seconds, (m - 2) * seconds / v)

    @cached_property
    def _chips(self) -> tuple[Device, ...]:
        """One device of each kind in the cluster."""
        devices = self.problem.cluster.devices
        return tuple(devices[d] for d in self.bounds.ranges.kinds_used)


class _GatherBounds:
    """The least that gathers and scatters show in the outlines of one `OutlineBounds`; remembers what they share."""

    def __init__(self, bounds: OutlineBounds) -> None:
        self.costs = bounds.ranges.costs

    def shown(self, outline: Outline, places: PositionClasses) -> Shown:
        """What collectives of sharded state add at least over all stages."""
        if outline.sharding not in BY_FSDP:
            return HIDDEN
        full, last = (self._over(outline, places, rows) for rows in (outline.microbatch, outline.last_rows))
        least = ScheduleTerms.of(outline).bound(outline.positions, Amount(*full[:2]), Amount(*last[:2]))
        return Shown(least.fill, least.steady, last[2])

    def _over(self, outline: Outline, places: PositionClasses, rows: int) -> tuple[float, float, float]:
        """Seconds shown forward, backward, and by scatters; of each block at the place where it shows least."""
        # A replica without rows repeats one, which shows no less; of equal shares the others then have one row each.
        most, fewest = -(-rows // outline.replicas), max(1, rows // outline.replicas)
        if outline.shares:
            each = replica_rows(rows, outline.shares, outline.replicas)
            most, fewest = max(each), min(own for own in each if own)
        found = self._made(places.distinct, most, fewest, outline.sharding)
        first, final = found.root if outline.stages == 1 else (0.0, 0.0)
        forward, backward = (each.over(outline.stages) for each in (found.forward, found.backward))
        return forward + first, backward, found.scatter + final

    @remembered
    def _made(self, every: tuple[tuple[int, ...], ...], most: int, fewest: int, sharding: Sharding) -> _Least:
        rooted = tuple(self.costs.ranges.parameters.by_readers)
        found, beside = (
            [self.costs.stage_times.gathers(devices, own, sharding, rooted) for devices in every]
            for own in (fewest, most)
        )
        gather = np.min([each.gather for each in found], axis=0)
        again = gather * found[0].regathers
        copied, added = (
            min(sums[-1] for sums in each) for each in zip(*((f.copied, f.added) for f in found), strict=True)
        )
        beyond = np.min([np.diff(each.scattering) - np.diff(each.backward) for each in beside], axis=0)
        return _Least(
            forward=_pairs([each.forward for each in found], gather[1:], float(gather[0]) + copied),
            backward=_pairs(
                [each.backward for each in found], again[:-1], float(again[-1]) + copied * found[0].regathers
            ),
            scatter=max(0.0, float(beyond.sum())) + min(each.scatter[0] for each in found) + added,
            root=(min(each.root[0] for each in found), min(each.root[1] for each in found)),
        )


def _pairs(found: list[tuple[float, ...]], alone: Floats, first: float) -> _Pairs:
    """From what each block shows beside its neighbour, as prefix sums, and what its gather takes that nothing hides."""
    each = [np.diff(sums) for sums in found]
    hidden = np.sort(np.maximum(0.0, alone - np.max(each, axis=0)))
    return _Pairs(float(np.min(each, axis=0).sum()), hidden, first)


def _backward(seconds: float) -> Amount:
    """Seconds of backward that make no weight gradients."""
    return Amount(backward=seconds, inner=seconds)


def _times(held: ParameterCounts, count: int) -> ParameterCounts:
    """What `count` blocks hold that share nothing."""
    return ParameterCounts(
        parameters=count * held.parameters, trainable=count * held.trainable, tensors=count * held.tensors,
        buffers=count * held.buffers,
    )  # fmt: skip


def _ratio(own: Amounts, least: Amounts, *, split: bool) -> float:
    """The least by which any pass of any block is above its least; with `split`, also what backwards are split into."""
    if own is least:
        return 1.0
    parts = [0, 1, 5] if not split else [0, 1, 2, 3, 4, 5]
    above, below = np.array(own.each)[:, parts], np.array(least.each)[:, parts]
    known = below > 0
    return float((above[known] / below[known]).min(initial=np.inf)) if known.any() else 1.0


def _shared(
    count: int, held: BlockRoom, once: Floats, again: Floats, waits: Floats, *,
    mixed: bool, least: float,
) -> float:  # fmt: skip
    """The least steady seconds of the slowest position with `count` blocks shared out, from `least` on.

    See the module's `steady`. `once`, `again`: seconds of a block at each position. `mixed`: a position may recompute
    some of its blocks.
    """

    def enough(seconds: float) -> bool:
        time = np.maximum(0.0, seconds - waits) * (1 + 1e-9)
        kept = np.minimum(held.kept, time // once)
        free = (time - kept * once) // again + kept if mixed else time // again
        return bool(np.maximum(kept, np.minimum(held.again, free)).sum() >= count)

    if once.min() <= 0 or enough(least):
        return least
    low, high = least, max(least, count * float(np.maximum(once, again).max()) + float(waits.max()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low
