"""Lower bounds of what stages on any submesh add to a step, for many block ranges at once.

For a stage on a submesh of n devices, with weights w of positions that add up to at most 1,

    step >= sum over stages of  fill + w (steady + tail)        since  max x >= sum w x

w is that of `PlacementClasses`. With w = 0 the same bounds the sum of the fills alone. Of messages the bounds have what
the last block of a stage makes (`messages`); gradients of tied parameters, the prologue and collectives of all ranks
are left out, and of memory what depends on more than the block range and the submesh.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placer.costs.communication.fsdp import Gathers
from placer.costs.communication.network import TransferSeconds
from placer.costs.compute.roofline import memory_rate
from placer.costs.costs import Costs
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.memory.parameters import ParameterCounts, Rooted
from placer.costs.memory.peak import StageMemory, state_bytes
from placer.costs.timing.after_backward import accumulate_seconds
from placer.graph import Affine
from placer.io.memo import remembered
from placer.plans.plan import BY_FSDP, Recompute, ScheduleName, Sharding
from placer.strategies.inter_op.bounds.schedule import NEVER, SLACK, Counts, Floats, ScheduleTerms
from placer.strategies.inter_op.submeshes.range_ends import RangeEnds
from placer.strategies.inter_op.submeshes.submesh import PlacementClass, PlacementClasses, Submesh
from placer.strategies.space.outline import recomputes

# What a block range holds, whatever its rows, and what is so much and so much a row.
A_ROW = " a row"
HELD = ("parameters", "trainable", "buffers")
GROWING = ("saved", "inputs", "results", "staying", "staying_apart", "returned")
# What a block range keeps, and takes to run again.
KEPT: dict[Recompute, str] = {False: "saved", "selective": "results", True: "inputs"}
AGAIN: dict[Recompute, str] = {"selective": "selective", True: "again"}
SIZES = (*HELD, *GROWING, *(name + A_ROW for name in GROWING))


class RangeTerms(NamedTuple):
    """What block ranges add to a step: to the sum of fills, to the largest steady, to the largest tail."""

    fill: Floats
    steady: Floats
    tail: Floats


class _RangeBytes(NamedTuple):
    """Bytes that block ranges hold: at all times, of gradients, of a microbatch in flight, of what is returned."""

    always: Floats
    gradients: Floats
    living: Floats
    returned: Floats


class _AlikeRanges(NamedTuple):
    """The place of each block range that has blocks in an array over all, its number, and of each number the first."""

    places: tuple[Counts, ...]
    numbers: Counts
    firsts: tuple[tuple[int, int], ...]


class StageBounds:
    """What stages cost at least on every placement of one problem, for the block ranges [first, last) of `ends`."""

    def __init__(self, places: PlacementClasses, submeshes: tuple[Submesh, ...], ends: RangeEnds) -> None:
        self.places = places
        self.problem = places.problem
        self.views = places.views
        self.submeshes = submeshes
        self.blocks = len(places.problem.graph.blocks)
        self.ends = ends
        #: Bytes of stages and what they send on, by block range and what else these depend on.
        self.held: dict[object, StageMemory] = {}
        self.sent: dict[object, TransferSeconds] = {}

    def costs(self, submesh: Submesh) -> Costs:
        """The costs of the graph as a submesh cuts it."""
        return self.views[submesh.layout].costs

    @remembered
    def quick(self, rows: int, schedule: ScheduleName) -> float:
        """No plan of such microbatches is faster, whatever its positions: every block where it costs least."""
        terms = ScheduleTerms(rows=rows, schedule=schedule, batch=self.problem.rows)
        least = np.full(self.blocks, NEVER)
        for place in self.places.every:
            if place.submesh.replicas <= rows:
                full, last = (np.diff(self.block_sums(place, own), axis=1) for own in (rows, terms.last_rows))
                m = terms.count
                work, inner = full[0] + full[1], full[1] - full[2]
                fill = full[0] + (1 - min(1, m - 1)) * inner if schedule == "zero-bubble" else work
                steady = (m - 2) * work + last[0] + last[1] if m > 1 else 0.0
                least = np.minimum(least, fill + place.weight * steady)
        return float(SLACK * least.sum())

    def block_sums(self, place: PlacementClass, rows: int) -> Floats:
        """Sums over the first blocks of forward, backward, weight, recompute and selective recompute seconds of `rows`
        rows, shape (5, blocks + 1).

        Of several kinds of devices the least forward and backward of each block, and the most of its weight gradients:
        what these hide of a backward is then never too little.
        """
        submesh = place.submesh
        each = -(-rows // submesh.replicas)
        kind = self.costs(submesh).block_times.device_class
        kinds = tuple(sorted({kind[device] for device in place.placement.devices}))
        return self._summed(submesh.layout, kinds, each)

    @remembered
    def _summed(self, layout: int, kinds: tuple[int, ...], rows: int) -> Floats:
        ranges = self.views[layout]
        seconds = [[ranges.seconds(block, device, rows) for block in range(self.blocks)] for device in kinds]
        least = [[[s.forward, s.backward, -s.weight, s.recompute, s.selective] for s in own] for own in seconds]
        sums = np.array(least).min(axis=0).T.cumsum(axis=1) * np.array([[1], [1], [-1], [1], [1]])
        return np.concatenate([np.zeros((5, 1)), sums], axis=1)

    @cached_property
    def crossing(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """What the block before each cut makes for later ones: values, and those of them that get gradients."""
        graph, spans = self.problem.graph, next(iter(self.views.values())).costs.ranges
        made = [spans.crossing.leaving(cut - 1, cut) if 0 < cut < self.blocks else () for cut in range(self.blocks + 1)]
        return tuple((own, tuple(v for v in own if graph.value(v).requires_grad)) for own in made)

    def messages(self, submesh: Submesh, rows: int) -> tuple[Floats, Floats]:
        """Seconds that a stage which ends before each block sends at least, and gets gradients back, for `rows` rows.

        All bytes leave its devices and enter as many as are left for others, at the best rate of any two devices.
        """
        return self._messages(max(1, min(submesh.size, self.problem.cluster.size - submesh.size)), rows)

    @remembered
    def _messages(self, both: int, rows: int) -> tuple[Floats, Floats]:
        """The same between so many devices and at least as many others."""
        numerics, graph = next(iter(self.views.values())).costs.numerics, self.problem.graph
        latency, per_byte = self._best_link

        def seconds(values: tuple[str, ...]) -> float:
            size = sum(numerics.bytes_of(value, graph.value(value), rows) for value in values)
            return SLACK * (latency + per_byte * size / both) if values else 0.0

        ahead, behind = zip(*((seconds(sent), seconds(back)) for sent, back in self.crossing), strict=True)
        return np.array(ahead), np.array(behind)

    def stages(
        self, place: PlacementClass, terms: ScheduleTerms
    ) -> tuple[dict[Recompute, Floats], dict[Recompute, Floats]]:
        """Of every block range on a placement: fill + weight (steady + tail), and fill; by whether it recomputes."""
        sent, returned = self.messages(place.submesh, terms.rows)
        sending = (sent + returned)[self.ends.last]
        stalled = terms.stalls(2)
        whole, alone = {}, {}
        for again, part in self.range_terms(place, terms).items():
            fill, steady = part.fill + sending, part.steady + stalled * sending
            whole[again], alone[again] = SLACK * (fill + place.weight * (steady + part.tail)), SLACK * fill
        return whole, alone

    def range_terms(self, place: PlacementClass, terms: ScheduleTerms) -> dict[Recompute, RangeTerms]:
        """What every block range on a placement adds, messages apart, by whether it recomputes."""
        kept, m = terms.kept(place.submesh.replicas), terms.count
        full = self._pass(place, terms.rows, kept)
        last = full if terms.last_rows == terms.rows else self._pass(place, terms.last_rows, kept)
        accumulate, tail = self._after_backward(place, kept)
        scattered = last["scatter"] if kept in BY_FSDP else 0.0
        found = {}
        for again in recomputes(self.problem):
            own, ending = (each[AGAIN[again]] if again else 0.0 for each in (full, last))
            backward = full["backward"] + own
            work = full["forward"] + backward
            fill, steady = work, 0.0 * work
            if m > 1:
                apart = terms.schedule == "zero-bubble"
                fill = work if apart else work + accumulate
                steady = (m - 2) * work + last["forward"] + last["backward"] + ending + (m - 2 + apart) * accumulate
            if terms.schedule == "zero-bubble":
                weight = full["weight"]
                filling = np.minimum(np.minimum(weight, full["forward"]), backward - weight)
                hidden = weight + min(1, m - 1) * filling
                fill, steady = fill - hidden, steady + hidden
            found[again] = RangeTerms(fill + scattered, steady, tail)
        return found

    def bytes(self, place: PlacementClass, terms: ScheduleTerms, in_flight: int, *, again: Recompute) -> Floats:
        """Bytes that a block range holds at least with so many microbatches in flight."""
        submesh = place.submesh
        rows, kept = -(-terms.rows // submesh.replicas), terms.kept(submesh.replicas)
        own = self._parts(submesh.layout, rows, kept, submesh.replicas, again=again, many=terms.count > 1)
        # Before the first backward has ended there are no gradients; then there is one microbatch less.
        held = np.maximum(in_flight * own.living, own.gradients + (in_flight - 1) * own.living)
        return own.always + held + own.returned

    def spared(self, place: PlacementClass, terms: ScheduleTerms, again: Recompute) -> Floats:
        """Bytes of a microbatch that block ranges hold less at most where some of their blocks do not run again."""
        rows, layout = -(-terms.rows // place.submesh.replicas), place.submesh.layout
        sizes, sums = self._sizes(layout), self.views[layout].costs.ranges.kept.spared(again, rows)
        apart, beside = (sizes[name] + sizes[name + A_ROW] * rows for name in ("staying_apart", "staying"))
        found: Floats = self.ends.over(np.array(sums, dtype=float)) + np.maximum(0.0, apart - beside)
        return found

    @remembered
    def _parts(
        self, layout: int, rows: int, kept: Sharding, replicas: int, *, again: Recompute, many: bool
    ) -> _RangeBytes:  # fmt: skip
        """What a block range holds of `rows` rows of a replica; `many`: of more than one microbatch."""
        costs, sizes = self.views[layout].costs, self._sizes(layout)
        parts, numerics = replicas if kept in BY_FSDP else 1, costs.numerics

        def at(name: str) -> Floats:
            return sizes[name] + sizes[name + A_ROW] * rows

        state = sizes["parameters"] * ((1 / parts) + (kept == "gradients"))
        gradients = sizes["trainable"] * numerics.weight_bytes / (1 if many else parts)
        state = state + sizes["trainable"] * state_bytes(numerics, costs.priced) / (replicas if kept != "none" else 1)
        living = at(KEPT[again]) + at("staying_apart" if again else "staying")
        return _RangeBytes(state + sizes["buffers"], gradients, living, at("returned"))

    @cached_property
    def _best_link(self) -> tuple[float, float]:
        """The least latency and the fewest seconds per byte between two devices."""
        network, count = next(iter(self.views.values())).costs.network, self.problem.cluster.size
        ways = [network.link_costs([pair])[pair] for pair in permutations(range(count), 2)]
        return min(way.latency for way in ways), min(way.per_byte for way in ways)

    def _pass(self, place: PlacementClass, rows: int, sharding: Sharding) -> dict[str, Floats]:
        """Seconds of every block range for a microbatch: forward, backward, weight, forward again, scatters."""
        sums, end = self.block_sums(place, rows), self.blocks - 1
        over = self.ends.over
        found = {name: over(own) for name, own in zip(("forward", "backward", "weight"), sums[:3], strict=True)}
        early = np.minimum(np.arange(self.blocks + 1), end)
        found["again"], found["selective"] = over(sums[3][early]), over(sums[4][early])
        submesh = place.submesh
        if sharding not in BY_FSDP:
            return found
        leaders, own = place.placement.devices[:: submesh.degree], -(-rows // submesh.replicas)
        for rooted, where in self._rooted(submesh.layout).items():
            shown = self.costs(submesh).stage_times.gathers(leaders, own, sharding, rooted)
            for name, seconds in self._shown(shown).items():
                found[name] = found.get(name, 0.0) + np.where(where, seconds, 0.0)
        return found

    def _shown(self, shown: Gathers) -> dict[str, Floats]:
        """What collectives of sharded state add to every block range."""
        over, pairs, first, final = self.ends.over, self.ends.over_pairs, self.ends.of_first, self.ends.of_last
        gather, scatter = np.array(shown.gather), np.array(shown.scatter)
        ahead, behind, scattering = map(np.array, (shown.forward, shown.backward, shown.scattering))
        copied, added = over(np.array(shown.copied)), over(np.array(shown.added))
        begun, ended = (0.0, 0.0) if self.ends.parts else shown.root
        beyond = pairs(scattering) - pairs(behind) + first(scatter)
        return {
            "forward": pairs(ahead) + first(gather) + copied + begun,
            "backward": pairs(behind) + (final(gather) + copied) * shown.regathers,
            "scatter": np.maximum(0.0, beyond) + added + ended,
        }

    @remembered
    def _rooted(self, layout: int) -> dict[Rooted, NDArray[np.bool_]]:
        """What the root of a block range may hold, and which ranges hold just that."""
        held = self.views[layout].costs.ranges.parameters
        if self.ends.parts:  # of a unit or of a root, as blocks are cut
            return {tuple(held.by_readers): np.ones(self.ends.shape, dtype=bool)}
        found: dict[Rooted, NDArray[np.bool_]] = {(): np.ones(self.ends.shape, dtype=bool)}
        for readers in held.by_readers:
            reads = np.zeros(self.blocks + 1)
            np.add.at(reads, np.array(readers) + 1, 1.0)
            several = self.ends.over(reads.cumsum()) > 1
            parted = {(*own, readers): where & several for own, where in found.items()}
            found = {own: where & ~several for own, where in found.items()} | parted
            found = {own: where for own, where in found.items() if where.any()}
        return found

    @remembered
    def _after_backward(self, place: PlacementClass, sharding: Sharding) -> tuple[Floats, Floats]:
        """Seconds of adding gradients to earlier ones, and of what follows the last backward but scatters."""
        submesh, devices, costs = place.submesh, place.placement.devices, self.costs(place.submesh)
        slow = costs.block_times.device_class[min(devices, key=lambda d: memory_rate(self.problem.cluster.devices[d]))]
        after = self._updates(submesh.layout, slow, 1 if sharding == "none" else submesh.replicas)
        if sharding not in BY_FSDP:
            after = after + self._reductions(place)
        if sharding == "optimizer":
            leaders = devices[:: submesh.degree]
            gathered = partial(costs.after_backward.gathered, devices=leaders, sharding=sharding)
            after = after + self._each(submesh.layout, gathered)
        parts = submesh.replicas if sharding in BY_FSDP else 1
        return self._adding(submesh.layout, slow), after + self._summed_within(submesh.layout, devices[0], parts)

    @remembered
    def _adding(self, layout: int, device: int) -> Floats:
        """Seconds of adding a microbatch's gradients to earlier ones."""
        chip, numerics = self.problem.cluster.devices[device], self.views[layout].costs.numerics
        return self._each(layout, lambda *blocks: accumulate_seconds(self._made(layout, *blocks), numerics, chip))

    @remembered
    def _updates(self, layout: int, device: int, parts: int) -> Floats:
        """Seconds of clipping and updating state that is divided into so many parts."""
        update = partial(self.views[layout].costs.after_backward.optimizer, sharding="optimizer", replicas=parts)
        return self._each(layout, partial(update, device=device))

    @remembered
    def _reductions(self, place: PlacementClass) -> Floats:
        """Seconds of summing gradients over replicas after the last backward."""
        submesh, leaders = place.submesh, place.placement.devices[:: place.submesh.degree]
        costs, pinned = self.costs(submesh), self.problem.pins.bucket

        def reduced(first: int, last: int) -> float:
            made = self._made(submesh.layout, first, last)
            size = (made.trainable - made.elsewhere) * costs.numerics.weight_bytes
            return costs.after_backward.fused(leaders, size, pinned) if size and len(leaders) > 1 else 0.0

        return self._each(submesh.layout, reduced)

    def _made(self, layout: int, first: int, last: int) -> ParameterCounts:
        """What a block range makes gradients of; where that may be cut, what no two blocks share of it."""
        held = self.views[layout].costs.ranges.parameters
        return held.unshared(first, last) if self.ends.parts else held.of(first, last)

    @remembered
    def _summed_within(self, layout: int, device: int, parts: int) -> Floats:
        """Seconds of summing gradients, cut into so many parts, within the replica of a device."""
        return self._each(layout, partial(self.views[layout].costs.after_backward.summed, device=device, parts=parts))

    @remembered
    def _sizes(self, layout: int) -> dict[str, Floats]:
        """Bytes and elements of every block range under a layout, by name; of those that grow, fixed and a row."""
        spans = self.views[layout].costs.ranges
        return {name: self._each(layout, partial(_size, spans, name)) for name in SIZES}

    def _each(self, layout: int, of: Callable[[int, int], float]) -> Floats:
        """`of` every block range, asked once for those that are alike."""
        alike = self._alike(layout)
        found = np.zeros(self.ends.shape)
        found[alike.places] = np.array([of(first, last) for first, last in alike.firsts], dtype=float)[alike.numbers]
        return found

    @remembered
    def _alike(self, layout: int) -> _AlikeRanges:
        """Which block ranges are alike under a layout."""
        numbers, firsts, known = list[int](), list[tuple[int, int]](), dict[int, int]()
        for _, first, last in self.ends:
            number = known.setdefault(self.views[layout].number(first, last), len(known))
            numbers.append(number)
            if number == len(firsts):
                firsts.append((first, last))
        places = tuple(np.array(own, dtype=np.int64) for own in zip(*(index for index, _, _ in self.ends), strict=True))
        return _AlikeRanges(places, np.array(numbers, dtype=np.int64), tuple(firsts))


def _size(spans: BlockRanges, name: str, first: int, last: int) -> int:
    """What `SIZES` names of a block range."""
    span = spans.of(first, last)
    if name in HELD:
        held: int = getattr(span.counts, name)
        return held
    size: Affine = getattr(span, name.removesuffix(A_ROW))
    return size.per_row if name.endswith(A_ROW) else size.fixed
