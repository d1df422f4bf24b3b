"""What each run of blocks costs as a stage of an outline: the terms of the step time, and whether it fits.

In: a Problem and an Outline. Out: `Piece`s for `chain` and `LoopPiece`s for `loop`, all from `Costs.stage_cost`,
`steptime.terms` and `placer.memory`; and floors, lower bounds that hold for every way to cut.

Two runs of equal shape (the same classes of blocks in the same order, holding and moving the same bytes) on like places
(the same kinds of devices, links and alive microbatches) cost the same, so they are priced once. Floors are sums over
single blocks of

    fill      1f1b, gpipe: F + B;  interleaved: (F + B) / v;  zero-bubble: max(F, B - W)
    steady    (m-2) (F + B) + F' + B' (m = 1: 0), + (1 - 1/v) (F + B), + for zero-bubble what a block alone hides

on the fastest kind of device used, without messages, gathers, recompute (unless it is fixed) and prologue.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate, groupby

from placer.collectives import message_seconds
from placer.compute import BlockSeconds, block_seconds
from placer.costs import Costs
from placer.memory import StageMemory, alive, stage_memory
from placer.plans import Stage, replica_rows
from placer.search import Problem
from placer.steptime import StageCost, Terms, terms
from placer.strategies.chain import Floors, Piece
from placer.strategies.loop import Loop, LoopPiece
from placer.strategies.space import Outline, pinned_stage, recomputes, stage_allowed
from placer.topology import bottleneck

# Sums in another order differ by rounding; a floor must not exceed what it bounds.
SLACK = 1 - 1e-12
PROBE_BYTES = 10**12


class Runs:
    """The shapes of all runs of blocks of a problem, numbered; equal numbers cost the same."""

    def __init__(self, problem: Problem, costs: Costs) -> None:
        self.problem = problem
        self.costs = costs
        self._numbers: dict[object, int] = {}
        self._known: dict[tuple[int, int], int] = {}
        self._seconds: dict[tuple[int, int, int], BlockSeconds] = {}

    def number(self, first: int, last: int) -> int:
        """The shape of blocks first..last-1."""
        found = self._known.get((first, last))
        if found is None:
            kinds = tuple((k, sum(1 for _ in run)) for k, run in groupby(self._kinds[first:last]))
            shape = (kinds, self.costs.spans.of(first, last))
            found = self._known[first, last] = self._numbers.setdefault(shape, len(self._numbers))
        return found

    def seconds(self, block: int, device: int, rows: int) -> BlockSeconds:
        """Seconds of one block by itself, without the prologue."""
        kind, chip = self._kinds[block], self.problem.cluster.devices[device]
        key = (kind, device, rows)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = block_seconds(
                self.problem.graph.classes[kind], self.costs.numerics, chip, self.problem.settings, rows
            )
        return found

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        return tuple(block.kind for block in self.problem.graph.blocks)


class Places:
    """What tells positions of `positions` x `replicas` devices apart, as far as costs can see."""

    def __init__(self, problem: Problem, positions: int, replicas: int) -> None:
        self.problem = problem
        self.devices = tuple(tuple(range(p * replicas, (p + 1) * replicas)) for p in range(positions))

    @cached_property
    def own(self) -> tuple[object, ...]:
        """Per position its devices' kinds in order of replica, and the levels its collectives climb."""
        cluster = self.problem.cluster
        return tuple(
            (_kinds_of(cluster.devices[d[0] : d[-1] + 1]), bottleneck(cluster, d), self._tied(d)) for d in self.devices
        )

    @cached_property
    def onward(self) -> tuple[object, ...]:
        """Per position the seconds of messages to the next one (the last one's go round to the first)."""
        cluster, count = self.problem.cluster, len(self.devices)
        pairs = ((d, self.devices[(p + 1) % count]) for p, d in enumerate(self.devices))
        return tuple(tuple(message_seconds(cluster, *pair, size) for size in (0, PROBE_BYTES)) for pair in pairs)

    def _tied(self, devices: tuple[int, ...]) -> object:
        leading = self.devices[0]
        if not self.problem.graph.tied or devices == leading:
            return devices == leading
        return bottleneck(self.problem.cluster, (*leading, *devices))


def _kinds_of(devices: tuple[object, ...]) -> object:
    """The kinds in order, one for all where they are alike."""
    return devices[0] if all(device is devices[0] for device in devices) else devices


class Pricing:
    """Prices of the runs of blocks of one outline; remembers them."""

    def __init__(self, problem: Problem, costs: Costs, runs: Runs, places: Places, outline: Outline) -> None:
        self.problem = problem
        self.costs = costs
        self.runs = runs
        self.places = places
        self.outline = outline
        self.pinned = pinned_stage(problem)
        self._known: dict[tuple[int, int], tuple[Piece, ...]] = {}
        self._known_loop: dict[tuple[int, int], tuple[LoopPiece, ...]] = {}

    @cached_property
    def peaks(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Alive microbatches per local stage at each peak of each position."""
        made = self.outline
        return alive(made.schedule, made.positions, made.stages, made.count)

    @cached_property
    def capacity(self) -> tuple[int, ...]:
        """Bytes of each position's smallest device less the largest overhead."""
        chips = self.problem.cluster.devices
        return tuple(
            min(chips[d].memory_bytes for d in devices) - max(chips[d].overhead_bytes for d in devices)
            for devices in self.places.devices
        )

    def pieces(self, stage: int, first: int, last: int) -> tuple[Piece, ...]:
        """What stage `stage` on blocks first..last-1 adds, per recompute choice that fits and is allowed."""
        if not stage_allowed(self.pinned, stage, first, last):
            return ()
        key = (self._place[stage], self.runs.number(first, last))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(
                Piece(part.fill, (part.steady, part.tail), again)
                for again in recomputes(self.problem)
                if self._fits(stage, first, last, again)
                for part in (self.terms(stage, first, last, again),)
            )
        return found

    def loop_pieces(self, stage: int, first: int, last: int) -> tuple[LoopPiece, ...]:
        """The same for schedules with several stages per position, with what memory needs."""
        if not stage_allowed(self.pinned, stage, first, last):
            return ()
        key = (self._place[stage], self.runs.number(first, last))
        found = self._known_loop.get(key)
        if found is None:
            found = self._known_loop[key] = tuple(
                self._loop_piece(stage, first, last, again) for again in recomputes(self.problem)
            )
        return found

    def terms(self, stage: int, first: int, last: int, recompute: bool) -> Terms:
        """Fill, steady and tail of a stage."""
        made = self.outline
        return terms(
            self.cost(stage, first, last, recompute), made.schedule, positions=made.positions, turns=made.virtual,
            microbatches=made.count,
        )  # fmt: skip

    def cost(self, stage: int, first: int, last: int, recompute: bool) -> StageCost:
        """The `StageCost` of a stage."""
        made, devices = self.outline, self.places.devices
        following = devices[(stage + 1) % made.positions] if stage + 1 < made.stages else ()
        return self.costs.stage_cost(
            first, last, devices=devices[stage % made.positions], following=following, leading=devices[0],
            rows=made.microbatch, last_rows=made.microbatches[-1], sharding=made.sharding, recompute=recompute,
        )  # fmt: skip

    def held(self, first: int, last: int, recompute: bool) -> StageMemory:
        """Bytes of a run as one stage."""
        made = self.outline
        return stage_memory(
            self.costs.spans.of(first, last), self.costs.numerics, self.costs.settings, rows=self._rows_each[0],
            recompute=recompute, sharding=made.sharding, replicas=made.replicas,
        )  # fmt: skip

    def loop(self) -> Loop:
        """The outline as a problem for `best_loop`."""
        floors = self.floors
        groups, grouped = self._groups
        return Loop(
            positions=self.outline.positions, turns=self.outline.virtual, pieces=self.loop_pieces, peaks=self.peaks,
            capacity=self.capacity, fill_floor=floors.additive, steady_floor=floors.peaks[0], groups=groups,
            grouped=grouped,
        )  # fmt: skip

    @cached_property
    def fixed(self) -> float:
        """Seconds of the step that no cut changes."""
        return self.costs.fixed(tuple(range(self.outline.positions * self.outline.replicas)))

    @cached_property
    def floors(self) -> Floors:
        """Lower bounds of fill, steady and tail of the blocks from j on."""
        blocks = range(len(self.problem.graph.blocks))
        each = [self._block_floors(block) for block in blocks]
        additive = [
            max(pair) for pair in zip(_suffix([a for a, _, _ in each]), _suffix([b for _, b, _ in each]), strict=True)
        ]
        steady = _suffix([c for _, _, c in each])
        return Floors(additive=tuple(additive), peaks=(tuple(steady), (0.0,) * len(steady)))

    def _block_floors(self, block: int) -> tuple[float, float, float]:
        """Two lower bounds of fill, of which neither holds for all runs together with the other, and one of steady."""
        made, m = self.outline, self.outline.count
        forward, backward, weight = self._seconds(block, made.microbatch)
        work = forward + backward
        steady = 0.0
        if m > 1:
            last_forward, last_backward, _ = self._seconds(block, made.microbatches[-1])
            steady = (m - 2) * work + last_forward + last_backward
        if made.virtual > 1:
            return work / made.virtual, work / made.virtual, steady + (1 - 1 / made.virtual) * work
        if made.schedule != "zero-bubble" or made.positions == 1:
            return work, work, steady
        inner = backward - weight
        filling = min(1.0, (m - 1) / (made.positions - 1))
        return forward, inner, steady + weight + filling * min(weight, forward, inner)

    def _seconds(self, block: int, rows: int) -> tuple[float, float, float]:
        """Least forward, backward and weight seconds of a block over the kinds of devices used."""
        each = replica_rows(rows, (), self.outline.replicas)
        found = [self.runs.seconds(block, device, max(each)) for device in self._kinds]
        few = [self.runs.seconds(block, device, min(each)) for device in self._kinds]
        forward = min(seconds.forward for seconds in found)
        again = forward if recomputes(self.problem) == (True,) else 0.0
        backward = min(seconds.backward for seconds in found) + again
        return forward, backward, min(seconds.weight for seconds in (*found, *few))

    @cached_property
    def _kinds(self) -> tuple[int, ...]:
        """One device of each kind in use."""
        chips = self.problem.cluster.devices
        first: dict[object, int] = {}
        for devices in self.places.devices:
            for device in devices:
                first.setdefault(chips[device], device)
        return tuple(first.values())

    @cached_property
    def _rows_each(self) -> tuple[int, ...]:
        return tuple(sorted(set(replica_rows(self.outline.microbatch, (), self.outline.replicas)), reverse=True))

    @cached_property
    def _place(self) -> tuple[int, ...]:
        """The number of each stage's place; equal numbers cost the same."""
        numbers: dict[object, int] = {}
        found = []
        for stage in range(self.outline.stages):
            position = stage % self.outline.positions
            onward = self.places.onward[position] if stage + 1 < self.outline.stages else None
            key = (self.places.own[position], onward, self.peaks[position])
            found.append(numbers.setdefault(key, len(numbers)))
        return tuple(found)

    @cached_property
    def _groups(self) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Tied parameters that sharded stages of one position may not both hold, and those each block uses."""
        graph = self.problem.graph
        tied = sorted(graph.tied.items()) if self.outline.sharding != "none" else []
        blocks = range(len(graph.blocks))
        return len(tied), tuple(tuple(g for g, (_, users) in enumerate(tied) if b in users) for b in blocks)

    def _fits(self, stage: int, first: int, last: int, recompute: bool) -> bool:
        """Whether the position of a lone stage holds it."""
        made = self.outline
        position = stage % made.positions
        alone = Stage(
            first=first, last=last, devices=self.places.devices[position], sharding=made.sharding, recompute=recompute
        )
        held = self.costs.memory(
            (alone,), schedule=made.schedule, positions=made.positions, position=position, microbatches=made.count,
            total_stages=made.stages, rows=made.microbatch,
        )  # fmt: skip
        return held.total <= self.capacity[position] + held.overhead

    def _loop_piece(self, stage: int, first: int, last: int, recompute: bool) -> LoopPiece:
        part, held = self.terms(stage, first, last, recompute), self.held(first, last, recompute)
        state = held.parameters + held.gradients + held.optimizer + held.buffers
        largest = (held.remade, held.workspace, held.communication)
        return LoopPiece(part.fill, part.steady, part.tail, state, held.kept, largest, recompute)


def _suffix(values: list[float]) -> list[float]:
    """Sums from each value on, a little less for rounding."""
    return [SLACK * total for total in reversed(list(accumulate(reversed(values), initial=0.0)))]
