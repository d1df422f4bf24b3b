"""A second lower bound of an outline, nearer to the truth: what its devices and its memory enforce, whatever the cuts.

For `c` blocks of the commonest class, with what one of them adds to a position (f, s: fill and steady; f', s' with its
forward recomputed), S stages, a_j microbatches alive at position j at once:

    messages    every stage but the last sends at least the least that crosses between two blocks: X
    gathers     of sharded state, over all stages: what one stage of all blocks shows (`gathers.py`), and for every cut
                between two blocks the rest of the second one's gather, which nothing hides
    memory      position j holds at most n_j = capacity / (state + a_j kept) blocks, n'_j of them recomputed
    recompute   at least r = c - sum n_j blocks are recomputed; c > sum n'_j: no plan
    steady      at least T with  sum over j of max(min(n_j, (T - X_j) / s_j), min(n'_j, (T - X_j) / s'_j)) >= c
                and at least the mean of all blocks with r recomputed ones, a position that takes q_j times as long at
                any block as the fastest one counting as 1 / q_j
    tail        the position with most such blocks has ceil(c / p) of them; scatters as gathers; optimizer of that many
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from placer.alive import lives
from placer.cluster import Device
from placer.collectives import Way
from placer.compute import memory_rate
from placer.held import Held
from placer.plans import BY_FSDP, Sharding, replica_rows
from placer.steptime import stalls
from placer.strategies.floors import SLACK, Amount, Amounts, Bounds, rhythm
from placer.strategies.runs import Places
from placer.strategies.space import Outline, recomputes
from placer.updates import accumulate_seconds, update_seconds

# Halvings of the steady seconds.
HALVINGS = 20
NEVER = float("inf")

# Bytes that nothing fills.
ENDLESS = 2**60

T = TypeVar("T")


class _Room(NamedTuple):
    """How many blocks of the commonest class each position holds: without and with recompute."""

    kept: NDArray[np.int64]
    again: NDArray[np.int64]


class _Shown(NamedTuple):
    """What collectives of sharded state add at least to all fills, to all steadies, and as scatters to all tails."""

    fill: float
    steady: float
    scatter: float


HIDDEN = _Shown(0.0, 0.0, 0.0)


class _Pairs(NamedTuple):
    """What gathers of one pass show: all pairs of neighbours, the first block, and what cuts add, least first."""

    shown: float
    hidden: NDArray[np.float64]
    first: float

    def over(self, stages: int) -> float:
        """Seconds over so many stages: the pairs parted by a cut are those to which it matters least."""
        return self.shown + float(self.hidden[: stages - 1].sum()) + self.first


class _Least(NamedTuple):
    """What gathers show at least, forward and backward, and what scatters add at least."""

    forward: _Pairs
    backward: _Pairs
    scatter: float


class Narrow:
    """The second bound of the outlines of one `Bounds`."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.problem = bounds.problem
        self.costs = bounds.runs.costs
        self._ratios: dict[tuple[int, int, bool], float] = {}
        self._messages: dict[tuple[tuple[Way, ...], int], float] = {}
        self._least: dict[tuple[tuple[tuple[int, ...], ...], int, int, Sharding], _Least] = {}

    def quick(self, outline: Outline, places: Places) -> float:
        """A first bound of the same plans as `step`, many times as fast; `NEVER` where the model fits nowhere."""
        if self.bounds.all_bytes(outline) > places.room:
            return NEVER
        return self._quick(outline, places, HIDDEN)

    def step(self, outline: Outline, places: Places, ceiling: float = NEVER) -> float:
        """No plan of the outline is estimated faster; `NEVER` where its memory holds none.

        Once it is seen to reach `ceiling`, no nearer bound is looked for.
        """
        if self.bounds.all_bytes(outline) > places.room:
            return NEVER
        if ceiling < NEVER:
            quick = self._quick(outline, places, self._gathered(outline, places))
            if quick >= ceiling:
                return quick
        room = self._room(outline, places)
        count = self.bounds.commonest[1]
        if np.maximum(room.kept, room.again).sum() < count:
            return NEVER
        return self._seconds(outline, places, room, again=max(0, count - int(room.kept.sum())))

    def _quick(self, outline: Outline, places: Places, shown: _Shown) -> float:
        """What all blocks take at least, whatever fits: without recompute for want of memory."""
        full, last = self.bounds.least(outline, places)
        whole = rhythm(outline).floor(outline.positions, full.rest[0], last.rest[0])
        block, count = self.bounds.commonest
        adding = (outline.count - 1) * self._accumulate(block)
        fill = whole.fill + ((outline.stages - 1) * self._message(outline, places) + shown.fill) / outline.virtual
        mean = self._mean(outline, places, whole.steady, count * adding + shown.steady)
        one = rhythm(outline).floor(outline.positions, full.each[block], last.each[block]).steady
        steady = max(mean, -(-count // outline.positions) * (one + adding))
        return fill + SLACK * (steady + self._tail(outline, places, shown.scatter)) + places.fixed

    def _mean(self, outline: Outline, places: Places, steady: float, added: float) -> float:
        """What the slowest position takes at least, for it is no faster than the mean of all; `added` anywhere."""
        if self.costs.profiles.uniform:
            return (steady + added) / outline.positions
        slowness = self._slowness(outline, places)
        return (steady + added / float(slowness.max())) / float((1 / slowness).sum())

    def _seconds(self, outline: Outline, places: Places, room: _Room, *, again: int) -> float:
        """The bound with at least `again` recomputed blocks."""
        pace, p, v = rhythm(outline), outline.positions, outline.virtual
        full, last = self.bounds.least(outline, places)
        block, count = self.bounds.commonest
        chosen = recomputes(self.problem) != (True,)  # where it is fixed, the amounts have it
        extra = [_backward(chosen * amounts.each[block].forward) for amounts in (full, last)]
        more = [_backward(again * amount.backward) for amount in extra]
        whole = pace.floor(p, full.rest[0].plus(more[0]), last.rest[0].plus(more[1]))
        message = self._message(outline, places)
        shown = self._gathered(outline, places)
        adding = (outline.count - 1) * self._accumulate(block)
        fill = whole.fill + ((outline.stages - 1) * message + shown.fill) / v
        one, once = self._paces(outline, places, chosen=chosen)
        mean = self._mean(outline, places, whole.steady, count * adding + shown.steady)
        stalled = 0.0 if outline.count < 2 else stalls(outline.schedule, p, outline.count) * message / v
        waits = np.where(np.arange(p) < p - 1, stalled, 0.0)
        steady = _shared(count, room, one + adding, once + adding, waits, mixed=v > 1, least=mean)
        return fill + SLACK * (steady + self._tail(outline, places, shown.scatter)) + places.fixed

    def _paces(self, outline: Outline, places: Places, *, chosen: bool) -> tuple[NDArray[np.float64], ...]:
        """Steady seconds of a block of the commonest class at each position, and with its forward recomputed."""
        pace, block = rhythm(outline), self.bounds.commonest[0]

        def seconds(full: Amounts, last: Amounts) -> tuple[float, float]:
            own = full.each[block], last.each[block]
            again = tuple(amount.plus(_backward(chosen * amount.forward)) for amount in own)
            once, twice = (pace.floor(outline.positions, *pair).steady for pair in (own, again))
            return once, twice

        found = np.array(self._each(outline, places, seconds))
        return found[:, 0], found[:, 1]

    def _slowness(self, outline: Outline, places: Places) -> NDArray[np.float64]:
        """Of each position how many times as long any block takes there as where it takes least, at least."""
        least = self.bounds.least(outline, places)
        split = outline.schedule == "zero-bubble"

        def ratio(full: Amounts, last: Amounts) -> float:
            return min(self._ratio(full, least[0], split=split), self._ratio(last, least[1], split=False))

        return np.array(self._each(outline, places, ratio))

    def _ratio(self, own: Amounts, least: Amounts, *, split: bool) -> float:
        """`_ratio`, remembered; the amounts are those that `Bounds` keeps."""
        key = (id(own), id(least), split)
        found = self._ratios.get(key)
        if found is None:
            found = self._ratios[key] = _ratio(own, least, split=split)
        return found

    def _each(self, outline: Outline, places: Places, of: Callable[[Amounts, Amounts], T]) -> list[T]:
        """`of` the seconds at each position, asked once for positions that do the same."""
        if self.costs.profiles.uniform:
            return [of(*self.bounds.least(outline, places))] * outline.positions
        known: dict[tuple[int, int], T] = {}
        found = []
        for own in self.bounds.at(outline, places):
            key = (id(own[0]), id(own[1]))
            found.append(known[key] if key in known else known.setdefault(key, of(*own)))
        return found

    def _room(self, outline: Outline, places: Places) -> _Room:
        """Blocks of the commonest class that fit each position."""
        block, count = self.bounds.commonest
        spans, kind = self.costs.spans, self.problem.graph.blocks[block].kind
        state = 0 if self._shares_parameters(block) else self.bounds.state_bytes(outline, block, block + 1)
        found: NDArray[np.int64] | None = None
        for rows, rooms in _by_rows(places.loads(outline)):
            sizes = (spans.saved_by(kind).at(rows), spans.own_inputs(block).at(rows))
            held = self._held(outline, rooms, state, sizes)
            found = held if found is None else np.minimum(found, held)
        assert found is not None
        kept, again = np.minimum(count, found.T)
        allowed = recomputes(self.problem)
        return _Room(kept * (False in allowed), again * (True in allowed))

    def _held(
        self, outline: Outline, rooms: NDArray[np.int64], state: int, sizes: tuple[int, int]
    ) -> NDArray[np.int64]:
        """Blocks of so many bytes that each position holds in its room: none recomputed, and all of them."""
        counts = (outline.positions, outline.stages, outline.count)
        if outline.virtual == 1:
            peaks = [own.later for own in lives(outline.schedule, *counts)]
            return np.array([_lone(int(room), state, sizes, own) for room, own in zip(rooms, peaks, strict=True)])
        least = np.array(self._least_blocks(outline), dtype=np.int64).reshape(outline.virtual, -1).T
        most = outline.lengths(len(self.problem.graph.blocks)).stop - 1
        return _turns(rooms, state, sizes, _peaks(outline.schedule, *counts), least, most)

    def _least_blocks(self, outline: Outline) -> list[int]:
        """How many blocks of the commonest class each stage of an even outline holds at least.

        A stage of q or q + 1 blocks lies between the shortest and the longest that can come before and after it.
        """
        blocks = self.problem.graph.blocks
        size, stages = outline.lengths(len(blocks)).start, outline.stages
        kind = blocks[self.bounds.commonest[0]].kind
        others = [block.kind != kind or index == len(blocks) - 1 for index, block in enumerate(blocks)]
        before = [0, *accumulate(others)]
        found = []
        for s in range(stages):
            first = max(s * size, len(blocks) - (stages - s) * (size + 1))
            last = min((s + 1) * (size + 1), len(blocks) - (stages - s - 1) * size)
            found.append(max(0, size - (before[last] - before[first])))
        return found

    def _message(self, outline: Outline, places: Places) -> float:
        """Seconds every stage but the last spends at least on messages, per microbatch, both ways."""
        sent, returned = self.costs.spans.least_sent
        used = places.ways_round if outline.virtual > 1 else places.ways_on
        if not any(sent) or not used:
            return 0.0
        key = (used, outline.most_rows)
        if key not in self._messages:
            sizes = [size.at(outline.most_rows) for size in (sent, returned) if any(size)]
            self._messages[key] = SLACK * min(sum(map(way.seconds, sizes)) for way in used)
        return self._messages[key]

    def _gathered(self, outline: Outline, places: Places) -> _Shown:
        """What collectives of sharded state add at least over all stages."""
        if outline.sharding not in BY_FSDP:
            return HIDDEN
        full, last = (self._least_gathers(outline, places, rows) for rows in (outline.microbatch, outline.last_rows))
        floor = rhythm(outline).floor(outline.positions, Amount(*full[:2]), Amount(*last[:2]))
        return _Shown(floor.fill, floor.steady, last[2])

    def _least_gathers(self, outline: Outline, places: Places, rows: int) -> tuple[float, float, float]:
        """Seconds shown forward, backward, and by scatters; of each block at the place where it shows least."""
        # A replica without rows gathers nothing; of equal shares the others then have one row each.
        most, fewest = -(-rows // outline.replicas), max(1, rows // outline.replicas)
        if outline.shares:
            each = replica_rows(rows, outline.shares, outline.replicas)
            most, fewest = max(each), min(own for own in each if own)
        key = (places.distinct, most, fewest, outline.sharding)
        found = self._least.get(key)
        if found is None:
            found = self._least[key] = self._made_least(places, most, fewest, outline.sharding)
        return found.forward.over(outline.stages), found.backward.over(outline.stages), found.scatter

    def _made_least(self, places: Places, most: int, fewest: int, sharding: Sharding) -> _Least:
        found, beside = (
            [self.costs.passes.gathers(devices, own, sharding) for devices in places.distinct] for own in (fewest, most)
        )
        gather = np.min([each.gather for each in found], axis=0)
        again = gather * found[0].regathers
        beyond = np.min([np.diff(each.scattering) - np.diff(each.backward) for each in beside], axis=0)
        return _Least(
            forward=_pairs([each.forward for each in found], gather[1:], float(gather[0])),
            backward=_pairs([each.backward for each in found], again[:-1], float(again[-1])),
            scatter=max(0.0, float(beyond.sum())) + min(each.scatter[0] for each in found),
        )

    def _tail(self, outline: Outline, places: Places, scattered: float) -> float:
        """Seconds of the tail of the position where it is longest."""
        p, costs = outline.positions, self.costs
        fastest = max(self._chips, key=memory_rate)
        if outline.sharding in BY_FSDP:
            held = costs.spans.of(0, len(self.problem.graph.blocks)).held
            kernels = replace(held, tensors=0)
            update = update_seconds(kernels, costs.numerics, costs.priced, fastest, outline.replicas)
            return (scattered + update) / p
        block, count = self.bounds.commonest
        if self._shares_parameters(block):
            return 0.0
        held = _times(costs.spans.of(block, block + 1).held, -(-count // p))
        divided = outline.sharding == "optimizer"
        update = update_seconds(held, costs.numerics, costs.priced, fastest, outline.replicas if divided else 1)
        size = held.trainable * costs.numerics.weight_bytes
        if divided:
            update += min(costs.tails.gather(devices, size) for devices in places.distinct)
        if outline.replicas < 2 or not size or outline.stages == 1:  # a lone stage reduces beside its last backward
            return update
        pinned = self.problem.pins.bucket
        return update + min(costs.tails.fused(devices, size, 0.0, pinned) for devices in places.distinct)

    def _accumulate(self, block: int) -> float:
        """Seconds of adding a block's gradients to earlier ones, on the fastest device."""
        if self._shares_parameters(block):
            return 0.0
        held = self.costs.spans.of(block, block + 1).held
        return min(accumulate_seconds(held, self.costs.numerics, chip) for chip in self._chips)

    @cached_property
    def _chips(self) -> tuple[Device, ...]:
        """One device of each kind in the cluster."""
        devices = self.problem.cluster.devices
        return tuple(devices[d] for d in self.bounds.runs.kinds_used)

    def _shares_parameters(self, block: int) -> bool:
        return self.costs.spans.of(block, block + 1).held.elsewhere > 0


@lru_cache(maxsize=4096)
def _peaks(schedule: str, positions: int, stages: int, microbatches: int) -> NDArray[np.int64]:
    """Microbatches alive beside gradients, over positions, peaks and turns; the last peak again where some lack."""
    found = [own.later for own in lives(schedule, positions, stages, microbatches)]
    most = max(map(len, found))
    return np.array([(*own, *(own[-1:] * (most - len(own)))) for own in found], dtype=np.int64)


def _turns(
    room: NDArray[np.int64], state: int, sizes: tuple[int, int], peaks: NDArray[np.int64], least: NDArray[np.int64],
    most: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Blocks each position of several stages holds that need not recompute, and all of them; 0 where none fit.

    Its stages hold `least` blocks of the class each at least and `most` at most. Turns of which fewest microbatches are
    alive are the first that need not recompute.
    """
    living = peaks * least[:, None, :]
    free = (room - least.sum(axis=1) * state)[:, None] - living.sum(axis=2) * sizes[1]
    needs = np.sort(living * max(0, sizes[0] - sizes[1]), axis=2).cumsum(axis=2)
    turns = (needs <= free[:, :, None]).sum(axis=2).min(axis=1)
    fits = (free >= 0).all(axis=1)
    return np.stack([turns * most * fits, least.shape[1] * most * fits], axis=1)


def _lone(room: int, state: int, sizes: tuple[int, int], peaks: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Blocks a position of one stage holds, none recomputed, and all of them."""
    living = max(peak[0] for peak in peaks)
    kept, again = (max(0, room) // max(1, state + living * size) for size in sizes)
    return kept, again


def _backward(seconds: float) -> Amount:
    """Seconds of backward that make no weight gradients."""
    return Amount(backward=seconds, inner=seconds)


def _pairs(found: list[tuple[float, ...]], alone: NDArray[np.float64], first: float) -> _Pairs:
    """From what each block shows beside its neighbour, as prefix sums, and what its gather takes that nothing hides."""
    each = [np.diff(sums) for sums in found]
    hidden = np.sort(np.maximum(0.0, alone - np.max(each, axis=0)))
    return _Pairs(float(np.min(each, axis=0).sum()), hidden, first)


def _times(held: Held, count: int) -> Held:
    """What `count` blocks hold that share nothing."""
    return Held(
        parameters=count * held.parameters, trainable=count * held.trainable, tensors=count * held.tensors,
        buffers=count * held.buffers,
    )  # fmt: skip


def _by_rows(loads: tuple[tuple[tuple[int, int], ...], ...]) -> list[tuple[int, NDArray[np.int64]]]:
    """Of each number of rows the bytes that a replica with them has at each position; `ENDLESS` where there is none."""
    rows = sorted({rows for own in loads for rows, _ in own})
    return [(each, np.array([dict(own).get(each, ENDLESS) for own in loads], dtype=np.int64)) for each in rows]


def _ratio(own: Amounts, least: Amounts, *, split: bool) -> float:
    """The least by which any pass of any block is above its least; with `split`, also what backwards are split into."""
    if own is least:
        return 1.0
    parts = slice(None if split else 2)
    above, below = np.array(own.each)[:, parts], np.array(least.each)[:, parts]
    known = below > 0
    return float((above[known] / below[known]).min(initial=np.inf)) if known.any() else 1.0


def _shared(
    count: int, room: _Room, once: NDArray[np.float64], again: NDArray[np.float64], waits: NDArray[np.float64], *,
    mixed: bool, least: float,
) -> float:  # fmt: skip
    """The least steady seconds of the slowest position with `count` blocks shared out, from `least` on.

    See the module's `steady`. `once`, `again`: seconds of a block at each position. `mixed`: a position may recompute
    some of its blocks.
    """

    def enough(seconds: float) -> bool:
        time = np.maximum(0.0, seconds - waits) * (1 + 1e-9)
        kept = np.minimum(room.kept, time // once)
        free = (time - kept * once) // again + kept if mixed else time // again
        return bool(np.maximum(kept, np.minimum(room.again, free)).sum() >= count)

    if once.min() <= 0 or enough(least):
        return least
    low, high = least, max(least, count * float(np.maximum(once, again).max()) + float(waits.max()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low
