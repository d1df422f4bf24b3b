"""Lower bounds of what stages on any shape add to a step, for many runs of blocks at once.

For a stage on a shape of n devices, with weights w of positions that add up to at most 1,

    step >= sum over stages of  fill + w (steady + tail)        since  max x >= sum w x

w is that of `shape_places`. With w = 0 the same bounds the sum of the fills alone. Of messages the floors have what the
last block of a stage makes (`messages`); gradients of tied parameters, the prologue and collectives of all ranks are
left out, and of memory what depends on more than the run and the shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from typing import NamedTuple

import numpy as np

from placer.costs.compute.roofline import memory_rate
from placer.costs.costs import Costs
from placer.costs.memory.peak import state_bytes
from placer.costs.timing.step import stalls
from placer.plans.plan import BY_FSDP, ScheduleName, Sharding
from placer.strategies.inter_op.bounds.schedule import SLACK
from placer.strategies.inter_op.submeshes.places import Place, ShapePlaces
from placer.strategies.inter_op.submeshes.run_arrays import A_ROW, NEVER, SIZES, Ends, Floats, size_of
from placer.strategies.inter_op.submeshes.submesh import Shape
from placer.strategies.space.outline import recomputes


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Pace:
    """What of a plan decides how seconds of stages become seconds of a step; `rows` of all but the last microbatch."""

    rows: int
    schedule: ScheduleName
    sharding: Sharding

    def count(self, batch: int) -> int:
        """Number of microbatches of a batch of so many rows."""
        return -(-batch // self.rows)

    def kept(self, shape: Shape) -> Sharding:
        """How a position of that shape keeps its state: a lone replica has nobody to share it with."""
        return self.sharding if shape.replicas > 1 else "none"


class Parts(NamedTuple):
    """What runs add to a step: to the sum of fills, to the largest steady, to the largest tail."""

    fill: Floats
    steady: Floats
    tail: Floats


class Floors:
    """What stages cost at least on every place of one problem, for the runs [first, last) of `ends`."""

    def __init__(self, places: ShapePlaces, shapes: tuple[Shape, ...], ends: Ends) -> None:
        self.places = places
        self.problem = places.problem
        self.views = places.views
        self.grounds = places.grounds
        self.shapes = shapes
        self.blocks = len(places.problem.graph.blocks)
        self.ends = ends
        self._sums: dict[tuple[int, tuple[int, ...], int], Floats] = {}
        self._sizes: dict[int, dict[str, Floats]] = {}
        self._tails: dict[tuple[Place, Sharding], tuple[Floats, Floats]] = {}

    def costs(self, shape: Shape) -> Costs:
        """The costs of the graph as a shape cuts it."""
        return self.views[shape.layout].costs

    def quick(self, rows: int, schedule: ScheduleName) -> float:
        """No plan of such microbatches is faster, whatever its positions: every block where it costs least."""
        pace = Pace(rows=rows, schedule=schedule, sharding="none")
        least = np.full(self.blocks, NEVER)
        for place in self.places.every:
            if place.spot.shape.replicas <= rows:
                full, last = (np.diff(self.passes(place, own), axis=1) for own in self._rows(pace))
                m = pace.count(self.problem.rows)
                work, inner = full[0] + full[1], full[1] - full[2]
                fill = full[0] + (1 - min(1, m - 1)) * inner if schedule == "zero-bubble" else work
                steady = (m - 2) * work + last[0] + last[1] if m > 1 else 0.0
                least = np.minimum(least, fill + place.weight * steady)
        return float(SLACK * least.sum())

    def passes(self, place: Place, rows: int) -> Floats:
        """Sums over the first blocks of forward, backward and weight seconds of `rows` rows, shape (3, blocks + 1).

        Of several kinds of devices the least forward and backward of each block, and the most of its weight gradients:
        what these hide of a backward is then never too little.
        """
        shape = place.spot.shape
        each = -(-rows // shape.replicas)
        runs = self.views[shape.layout]
        kinds = sorted({runs.costs.block_times.device_class[device] for device in place.spot.devices})
        key = shape.layout, tuple(kinds), each
        if key not in self._sums:
            seconds = [[runs.seconds(block, device, each) for block in range(self.blocks)] for device in kinds]
            least = [[[s.forward, s.backward, -s.weight] for s in own] for own in seconds]
            sums = np.array(least).min(axis=0).T.cumsum(axis=1) * np.array([[1], [1], [-1]])
            self._sums[key] = np.concatenate([np.zeros((3, 1)), sums], axis=1)
        return self._sums[key]

    @cached_property
    def crossing(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """What the block before each cut makes for later ones: values, and those of them that get gradients."""
        graph, spans = self.problem.graph, next(iter(self.views.values())).costs.ranges
        made = [spans.leaving(cut - 1, cut) if 0 < cut < self.blocks else () for cut in range(self.blocks + 1)]
        return tuple((own, tuple(v for v in own if graph.value(v).requires_grad)) for own in made)

    def messages(self, shape: Shape, rows: int) -> tuple[Floats, Floats]:
        """Seconds that a stage which ends before each block sends at least, and gets gradients back, for `rows` rows.

        All bytes leave its devices and enter as many as are left for others, at the best rate of any two devices.
        """
        numerics, graph = next(iter(self.views.values())).costs.numerics, self.problem.graph
        latency, per_byte = self._best_way
        both = max(1, min(shape.size, self.problem.cluster.size - shape.size))

        def seconds(values: tuple[str, ...]) -> float:
            size = sum(numerics.bytes_of(graph.value(value), rows) for value in values)
            return SLACK * (latency + per_byte * size / both) if values else 0.0

        ahead, behind = zip(*((seconds(sent), seconds(back)) for sent, back in self.crossing), strict=True)
        return np.array(ahead), np.array(behind)

    def stages(self, place: Place, pace: Pace) -> tuple[dict[bool, Floats], dict[bool, Floats]]:
        """Of every run on a place: fill + weight (steady + tail), and fill; by whether it recomputes."""
        sent, returned = self.messages(place.spot.shape, pace.rows)
        sending = (sent + returned)[self.ends.last]
        stalled = (pace.count(self.problem.rows) > 1) * stalls(pace.schedule, 2, pace.count(self.problem.rows))
        whole, alone = {}, {}
        for again, part in self.terms(place, pace).items():
            fill, steady = part.fill + sending, part.steady + stalled * sending
            whole[again], alone[again] = SLACK * (fill + place.weight * (steady + part.tail)), SLACK * fill
        return whole, alone

    def terms(self, place: Place, pace: Pace) -> dict[bool, Parts]:
        """What every run on a place adds, messages apart, by whether it recomputes."""
        full, last = (self._pass(place, rows, pace.kept(place.spot.shape)) for rows in self._rows(pace))
        m, (accumulate, tail) = pace.count(self.problem.rows), self._after(place, pace.kept(place.spot.shape))
        if pace.kept(place.spot.shape) in BY_FSDP:
            tail = tail + last["scatter"]
        found = {}
        for again in recomputes(self.problem):
            backward = full["backward"] + again * full["again"]
            work = full["forward"] + backward
            fill, steady = work, 0.0 * work
            if m > 1:
                steady = (m - 2) * work + last["forward"] + last["backward"] + again * last["again"]
                steady += (m - 1) * accumulate
            if pace.schedule == "zero-bubble":
                weight = full["weight"]
                filling = np.minimum(np.minimum(weight, full["forward"]), backward - weight)
                hidden = weight + min(1, m - 1) * filling
                fill, steady = fill - hidden, steady + hidden
            found[again] = Parts(fill, steady, tail)
        return found

    def bytes(self, place: Place, pace: Pace, alive: int, *, again: bool) -> Floats:
        """Bytes that a run holds at least with so many microbatches alive."""
        shape, costs = place.spot.shape, self.costs(place.spot.shape)
        sizes, rows = self._sized(shape.layout), -(-pace.rows // shape.replicas)
        kept, many = pace.kept(shape), pace.count(self.problem.rows) > 1
        parts = shape.replicas if kept in BY_FSDP else 1
        numerics = costs.numerics

        def at(name: str) -> Floats:
            return sizes[name] + sizes[name + A_ROW] * rows

        state = sizes["parameters"] * ((1 / parts) + (kept == "gradients"))
        gradients = sizes["trainable"] * numerics.weight_bytes / (1 if many else parts)
        state = state + sizes["trainable"] * state_bytes(numerics, costs.priced) / (
            shape.replicas if kept != "none" else 1
        )
        living = at("inputs") + at("staying_apart") if again else at("saved") + at("staying")
        # Before the first backward has ended there are no gradients; then there is one microbatch less.
        held = np.maximum(alive * living, gradients + (alive - 1) * living)
        return state + sizes["buffers"] + held + at("returned")

    @cached_property
    def _best_way(self) -> tuple[float, float]:
        """The least latency and the fewest seconds per byte between two devices."""
        network, count = next(iter(self.views.values())).costs.network, self.problem.cluster.size
        links = [network.link_costs([pair])[pair] for pair in permutations(range(count), 2)]
        return min(link.latency for link in links), min(link.per_byte for link in links)

    def _rows(self, pace: Pace) -> tuple[int, int]:
        return pace.rows, self.problem.rows % pace.rows or pace.rows

    def _pass(self, place: Place, rows: int, sharding: Sharding) -> dict[str, Floats]:
        """Seconds of every run for a microbatch: forward, backward, weight, forward again, scatters."""
        sums, end = self.passes(place, rows), self.blocks - 1
        over = self.ends.over
        found = {name: over(own) for name, own in zip(("forward", "backward", "weight"), sums, strict=True)}
        found["again"] = over(sums[0][np.minimum(np.arange(self.blocks + 1), end)])
        shape = place.spot.shape
        if sharding not in BY_FSDP:
            return found
        leaders, own = place.spot.devices[:: shape.degree], -(-rows // shape.replicas)
        shown = self.costs(shape).stage_times.gathers(leaders, own, sharding)
        gather, scatter = np.array(shown.gather), np.array(shown.scatter)
        ahead, behind, scattering = map(np.array, (shown.forward, shown.backward, shown.scattering))
        again = gather * shown.regathers
        pairs, first, final = self.ends.over_pairs, self.ends.of_first, self.ends.of_last
        found["forward"] = found["forward"] + pairs(ahead) + first(gather)
        found["backward"] = found["backward"] + pairs(behind) + final(again)
        beyond = pairs(scattering) - pairs(behind) + first(scatter)
        found["scatter"] = np.maximum(0.0, beyond)
        return found

    def _after(self, place: Place, sharding: Sharding) -> tuple[Floats, Floats]:
        """Seconds of adding gradients to earlier ones, and of what follows the last backward but scatters."""
        key = place, sharding
        if key not in self._tails:
            self._tails[key] = self._made_after(place, sharding)
        return self._tails[key]

    def _made_after(self, place: Place, sharding: Sharding) -> tuple[Floats, Floats]:
        shape, costs = place.spot.shape, self.costs(place.spot.shape)
        leaders = place.spot.devices[:: shape.degree]
        slow = min(place.spot.devices, key=lambda d: memory_rate(self.problem.cluster.devices[d]))

        def after(first: int, last: int) -> float:
            seconds = costs.after_backward.optimizer(
                first, last, device=slow, sharding=sharding, replicas=shape.replicas
            )
            if sharding not in BY_FSDP:
                pinned = self.problem.pins.bucket
                seconds += costs.after_backward.reduction(
                    first, last, devices=leaders, rows=1, backward=0.0, bucket_bytes=pinned
                )
            seconds += costs.after_backward.gathered(first, last, devices=leaders, sharding=sharding)
            return seconds + costs.after_backward.summed(first, last, device=place.spot.devices[0])

        def adding(first: int, last: int) -> float:
            return costs.after_backward.accumulate(first, last, device=slow)

        return self._each(shape.layout, adding), self._each(shape.layout, after)

    def _sized(self, layout: int) -> dict[str, Floats]:
        """Bytes and elements of every run under a layout, by name; of those that grow, fixed and a row."""
        if layout not in self._sizes:
            spans = self.views[layout].costs.ranges
            self._sizes[layout] = {name: self._each(layout, partial(size_of, spans, name)) for name in SIZES}
        return self._sizes[layout]

    def _each(self, layout: int, of: Callable[[int, int], float]) -> Floats:
        """`of` every run, asked once for those that are alike."""
        runs, known = self.views[layout], dict[int, float]()
        found = np.zeros(self.ends.shape)
        for index, first, last in self.ends:
            number = runs.number(first, last)
            if number not in known:
                known[number] = of(first, last)
            found[index] = known[number]
        return found
