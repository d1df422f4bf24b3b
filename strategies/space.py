"""What may be chosen: the space every built-in strategy searches, and the plans in it.

In: a Problem. Out: `Outline`s (everything but where to cut and which stages recompute) and the Plan an outline makes.

The space, stated once:
    layout: none, or one of `layouts.layouts`, the same at every position: a replica is then t = `degree` devices
    positions p and replicas d, the same at every position, with p * d * t <= devices; devices beyond p * d * t stay
        unused. On more than `MANY_DEVICES` devices d is p's full share of them, or divides their number or a node's,
        or is a power of two ("them": of unlike devices also any choice of their classes).
    line-up: devices in cluster order, position by position and replica by replica; where they are not all alike also
        those of `lineups`: classes left out, in any order, position by position or replica by replica
    shares: equal; where replicas are on unlike devices also those of `sharing`, the same at every position
    virtual stages v per position, at most `MOST_VIRTUAL`; v > 1 exactly under `interleaved`; one position always runs
        `1f1b` (one microbatch after the other) unless another schedule is pinned
    cuts: p * v runs of consecutive blocks, none empty; with v > 1 all of the same number of blocks, or one more (the
        closed step time is that of even turns, and uneven ones only trade memory for a bubble it does not see), and
        where blocks do not repeat at most `coarse.FEW_STAGES` of them
    microbatches of R rows, R >= d, the last one the rest (of fewer than d rows some replicas have none); in a batch
        of more than `MANY_ROWS` rows R is the batch, or d times a divisor of rows/d or a power of two
    sharding: one choice for the whole plan; sharded only where d > 1 and the backward is whole (not `zero-bubble`)
    a layout along `expert` gives each device rows of its own: R and the last microbatch are multiples of d * t
    recompute: per stage
    fusion of gradients: buckets of one of `bucketing.SIZES`, one size for the plan
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import get_args

from placer.costs import with_best_buckets
from placer.errors import UsageError
from placer.plans import Layout, Plan, ScheduleName, Sharding, Stage, replica_rows
from placer.rules.experts import expert_counts
from placer.schedule import SPLIT_BACKWARD
from placer.search import Pins, Problem
from placer.strategies.axes import longest
from placer.strategies.lineups import is_mixed, totals, units
from placer.topology import replica_groups

MANY_DEVICES = 32
MANY_ROWS = 32
MOST_VIRTUAL = 4


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Outline:
    """A plan without its cuts: `rows` is the global batch, `microbatch` the rows of each but the last.

    `layout` is the number of one of the problem's layouts of `degree` devices a replica, -1 for none. `lineup` are the
    devices position by position (empty: the first of the cluster in order), `shares` those of the replicas (empty:
    equal).
    """

    positions: int
    replicas: int
    virtual: int
    rows: int
    microbatch: int
    schedule: ScheduleName
    sharding: Sharding
    layout: int = -1
    degree: int = 1
    lineup: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.positions * self.virtual

    def lengths(self, blocks: int) -> range:
        """Numbers of blocks a stage may have when there are `blocks` of them."""
        if self.virtual > 1:
            return range(blocks // self.stages, -(-blocks // self.stages) + 1)
        return range(1, blocks - self.stages + 2)

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Rows of each microbatch, the last may be smaller."""
        full, rest = divmod(self.rows, self.microbatch)
        return (self.microbatch,) * full + ((rest,) if rest else ())

    @property
    def last_rows(self) -> int:
        """Rows of the last microbatch."""
        return self.rows % self.microbatch or self.microbatch

    @property
    def count(self) -> int:
        """Number of microbatches."""
        return -(-self.rows // self.microbatch)

    @property
    def most_rows(self) -> int:
        """Rows of the replica that has most of a full microbatch."""
        return max(self.rows_each) if self.shares else -(-self.microbatch // self.replicas)

    @property
    def fewest_rows(self) -> int:
        """Rows of the replica that has fewest of a full microbatch."""
        return min(self.rows_each) if self.shares else self.microbatch // self.replicas

    @property
    def rows_each(self) -> tuple[int, ...]:
        """Rows of each replica of a full microbatch."""
        return replica_rows(self.microbatch, self.shares, self.replicas)

    @property
    def used(self) -> tuple[int, ...]:
        """All devices, in order of rank."""
        return self.lineup or tuple(range(self.positions * self.replicas * self.degree))

    def sharded(self, sharding: Sharding) -> Outline:
        """The same with its state kept another way."""
        return replace(self, sharding=sharding)

    def devices(self, position: int) -> tuple[int, ...]:
        """The devices of a position."""
        count = self.replicas * self.degree
        own = range(position * count, (position + 1) * count)
        return self.lineup[own.start : own.stop] if self.lineup else tuple(own)

    def __str__(self) -> str:
        parts = [f"pipeline={self.positions}", f"data={self.replicas}", f"microbatches={self.count}"]
        if self.degree > 1:
            parts.insert(2, f"split={self.degree}")
        if self.positions > 1:
            parts.append(self.schedule + (f" x{self.virtual}" if self.virtual > 1 else ""))
        if self.sharding != "none":
            parts.append(f"shard={self.sharding}")
        if self.shares:
            parts.append(f"shares={':'.join(map(str, self.shares))}")
        return " ".join(parts)


def outlines(problem: Problem) -> Iterator[Outline]:
    """Every outline the pins allow, in a fixed order. Raises UsageError for pins that contradict."""
    require_pins(problem)
    for positions in position_counts(problem):
        for replicas in replica_counts(problem, positions):
            for microbatch in microbatch_rows(problem, replicas):
                for schedule, virtual in schedules(problem, positions):
                    for sharding in shardings(problem.pins, replicas, schedule):
                        yield Outline(
                            positions=positions, replicas=replicas, virtual=virtual, rows=problem.rows,
                            microbatch=microbatch, schedule=schedule, sharding=sharding,
                        )  # fmt: skip


def plan_of(
    problem: Problem, outline: Outline, cuts: tuple[int, ...], recompute: tuple[bool, ...],
    layout: Layout | None = None,
) -> Plan:  # fmt: skip
    """The plan with stages cut before blocks `cuts` (inner cuts only, ascending); `recompute` per stage."""
    edges = (0, *cuts, len(problem.graph.blocks))
    stages = tuple(
        Stage(
            first=edges[s], last=edges[s + 1], devices=outline.devices(s % outline.positions), shares=outline.shares,
            sharding=outline.sharding, recompute=recompute[s], layout=None if layout is None else 0,
            degree=outline.degree,
        )
        for s in range(outline.stages)
    )  # fmt: skip
    made = Plan(
        model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings, stages=stages,
        schedule=outline.schedule, microbatches=outline.microbatches, seed=problem.seed,
        layouts=() if layout is None else (layout,),
    )  # fmt: skip
    return with_best_buckets(made) if problem.pins.bucket is None else replace(made, bucket_bytes=problem.pins.bucket)


def position_counts(problem: Problem, degree: int = 1) -> tuple[int, ...]:
    """Allowed numbers of pipeline positions with replicas of `degree` devices."""
    most = min(len(problem.graph.blocks), units(problem.cluster, degree))
    pinned = problem.pins.pipeline
    least = 1 + max((stage for _, stage in problem.pins.stage_of), default=0) // MOST_VIRTUAL
    return tuple(p for p in range(least, most + 1) if pinned in (None, p))


def replica_counts(problem: Problem, positions: int, degree: int = 1) -> tuple[int, ...]:
    """Allowed numbers of replicas, of `degree` devices each, of each of `positions` positions."""
    cluster = problem.cluster
    most = min(units(cluster, degree) // positions, 1 if whole_batch(problem) else problem.rows)
    if problem.pins.data is not None:
        return (problem.pins.data,) if problem.pins.data <= most else ()
    if cluster.size <= MANY_DEVICES:
        return tuple(range(1, most + 1))
    nodes = {node.size for node, _ in cluster.groups}
    likely = {*divisors(cluster.size), *powers_of_two(most), most, *(d for n in nodes for d in divisors(n))}
    if is_mixed(cluster, degree):
        likely |= {d for own in totals(cluster, degree) for d in _likely_replicas(own * degree, own // positions)}
    return tuple(sorted(d for d in likely if d <= most))


def _likely_replicas(devices: int, most: int) -> Iterable[int]:
    """Numbers of replicas of so many devices alone."""
    return range(1, most + 1) if devices <= MANY_DEVICES else (*divisors(devices), max(1, most))


def microbatch_rows(problem: Problem, replicas: int, apart: int = 1) -> tuple[int, ...]:
    """Allowed rows of a full microbatch over `replicas` replicas, ascending: every replica has a row of each.

    Where the rows of a replica go to `apart` devices, all of these have equally many.
    """
    rows, pinned = problem.rows, problem.pins.microbatches
    if whole_batch(problem):
        return (rows,) if rows % apart == 0 else ()
    found = range(replicas, rows + 1) if rows <= MANY_ROWS or pinned else _likely_rows(rows, replicas)
    even = replicas * apart if apart > 1 else 1
    return tuple(r for r in found if pinned in (None, -(-rows // r)) and r % even == 0 == rows % even)


def _likely_rows(rows: int, replicas: int) -> tuple[int, ...]:
    most = rows // replicas
    return tuple(sorted({rows, *(replicas * each for each in (*divisors(most), *powers_of_two(most)))}))


def schedules(problem: Problem, positions: int) -> tuple[tuple[ScheduleName, int], ...]:
    """Allowed (schedule, virtual stages per position) of `positions` positions."""
    pinned = problem.pins.schedule
    if positions == 1:
        one = "1f1b" if pinned is None else pinned
        return () if one == "interleaved" else ((schedule_name(one), 1),)
    most = min(MOST_VIRTUAL, len(problem.graph.blocks) // positions)
    found: list[tuple[ScheduleName, int]] = [("1f1b", 1), ("gpipe", 1), ("zero-bubble", 1)]
    found += [("interleaved", virtual) for virtual in range(2, most + 1)]
    return tuple(choice for choice in found if pinned in (None, choice[0]))


def shardings(pins: Pins, replicas: int, schedule: ScheduleName) -> tuple[Sharding, ...]:
    """Allowed ways to keep the state of `replicas` replicas under `schedule`."""
    whole = replicas > 1 and schedule not in SPLIT_BACKWARD
    free: tuple[Sharding, ...] = ("none", "gradients", "parameters") if whole else ("none",)
    return tuple(sharding for sharding in free if pins.shard in (None, sharding))


def recomputes(problem: Problem) -> tuple[bool, ...]:
    """Allowed answers to whether a stage recomputes its forward."""
    if problem.settings.recompute != "auto":
        return (problem.settings.recompute == "full",)
    return (False, True) if problem.pins.recompute is None else (problem.pins.recompute,)


def whole_batch(problem: Problem) -> bool:
    """Whether the loss forbids to split the batch: no replicas and one microbatch."""
    return problem.graph.loss.reduction == "other"


def pinned_stage(problem: Problem) -> dict[int, int]:
    """The stage each pinned block must lie in, by block index."""
    index = {block.name: i for i, block in enumerate(problem.graph.blocks)}
    return {index[name]: stage for name, stage in problem.pins.stage_of}


def stage_allowed(pinned: dict[int, int], stage: int, first: int, last: int) -> bool:
    """Whether stage `stage` may be blocks `first` to `last`."""
    return all((first <= block < last) == (wanted == stage) for block, wanted in pinned.items())


def require_pins(problem: Problem) -> None:
    """Raise UsageError naming both sides where a pin contradicts another, the graph, the cluster or the settings."""
    _require_known(problem.pins)
    for complaint in _contradictions(problem):
        raise UsageError(f"{complaint}; drop or change one of them")


def _require_known(pins: Pins) -> None:
    counts = (("data", pins.data), ("pipeline", pins.pipeline), ("microbatches", pins.microbatches), *pins.axes)
    for name, value in counts:
        if value is not None and value < 1:
            raise UsageError(f"pin {name}={value}: give a number of at least 1")
    if pins.schedule is not None:
        schedule_name(pins.schedule)
    if pins.shard is not None and pins.shard not in get_args(Sharding):
        raise UsageError(f"pin shard={pins.shard} is unknown; known: {', '.join(get_args(Sharding))}")


def schedule_name(name: str) -> ScheduleName:
    """`name` as a schedule. Raises UsageError listing the known ones."""
    for known in get_args(ScheduleName):
        if known == name:
            found: ScheduleName = known
            return found
    raise UsageError(f"pin schedule={name} is unknown; known: {', '.join(get_args(ScheduleName))}")


def _contradictions(problem: Problem) -> Iterator[str]:
    pins, rows = problem.pins, problem.rows
    blocks, devices = len(problem.graph.blocks), problem.cluster.size
    pipeline, data, count = pins.pipeline or 1, pins.data or 1, pins.microbatches or 1
    if pipeline > blocks:
        yield f"pin pipeline={pipeline} contradicts the model: it has {blocks} blocks"
    if pipeline > devices or data > devices:
        name, value = ("pipeline", pipeline) if pipeline > devices else ("data", data)
        yield f"pin {name}={value} contradicts the cluster {problem.cluster.name}: it has {devices} devices"
    if pipeline * data > devices:
        yield f"pins pipeline={pipeline} and data={data} need {pipeline * data} devices, the cluster has {devices}"
    split = [(axis, degree) for axis, degree in pins.axes if degree and degree > 1]
    if len(split) > 1:
        names = " and ".join(f"{axis}={degree}" for axis, degree in split)
        yield f"pins {names} together: a replica's devices lie along one axis"
    for axis, degree in split:
        if pipeline * data * degree > devices:
            found = pipeline * data * degree
            yield f"pin {axis}={degree} with pipeline={pipeline} and data={data} needs {found} devices of {devices}"
        elif not replica_groups(problem.cluster, degree):
            yield f"pin {axis}={degree} contradicts the cluster {problem.cluster.name}: it divides none of its nodes"
    yield from _axis_contradictions(problem)
    if data > rows:
        yield f"pin data={data} contradicts the batch of {rows} rows: every replica needs a row"
    elif pins.microbatches and -(-rows // -(-rows // count)) != count:
        likely = sorted({-(-rows // r) for r in range(1, rows + 1)}, key=lambda m: (abs(m - count), m))[:2]
        yield (
            f"pin microbatches={count} contradicts the batch of {rows} rows: only the last microbatch may be smaller, "
            f"so {' or '.join(map(str, likely))} microbatches are possible"
        )
    elif pins.microbatches and not microbatch_rows(problem, data):
        yield f"pins microbatches={count} and data={data} contradict the batch of {rows} rows: some replica has none"
    if whole_batch(problem) and (data > 1 or count > 1):
        name, value = ("data", data) if data > 1 else ("microbatches", count)
        yield f"pin {name}={value} contradicts the loss, which may not be split on the batch ({problem.graph.loss.why})"
    yield from _schedule_contradictions(problem)
    yield from _stage_contradictions(problem)


def _axis_contradictions(problem: Problem) -> Iterator[str]:
    """What the model has too few of for the pinned axes."""
    expert, sequence = problem.pins.expert or 1, problem.pins.sequence or 1
    experts, tokens = expert_counts(problem.graph), longest(problem.graph)
    if expert > 1 and not experts:
        yield f"pin expert={expert} contradicts the model {problem.graph.name}: it has no experts"
    elif expert > 1 and experts[0] < expert:
        yield f"pin expert={expert} contradicts the model: a layer has {experts[0]} experts, every device needs one"
    elif expert > 1 and problem.rows % (expert * (problem.pins.data or 1)):
        each = f" of {problem.pins.data} replicas" if problem.pins.data else ""
        yield (
            f"pin expert={expert} contradicts the batch of {problem.rows} rows: the {expert} devices{each} have "
            "equally many rows each"
        )
    if sequence > 1 and not tokens:
        yield f"pin sequence={sequence} contradicts the model {problem.graph.name}: its blocks pass no sequences on"
    elif sequence > 1 and tokens % sequence:
        yield f"pin sequence={sequence} contradicts the batch: its sequences of {tokens} tokens do not divide by it"


def _schedule_contradictions(problem: Problem) -> Iterator[str]:
    pins, blocks = problem.pins, len(problem.graph.blocks)
    if pins.schedule == "interleaved":
        if pins.pipeline == 1:
            yield "pins schedule=interleaved and pipeline=1 contradict: interleaving needs two positions"
        if blocks < 2 * (pins.pipeline or 2):
            yield (
                f"pin schedule=interleaved contradicts the model: {pins.pipeline or 2} positions of two stages "
                f"need {2 * (pins.pipeline or 2)} blocks, it has {blocks}"
            )
    if pins.shard not in (None, "none") and pins.data == 1:
        yield f"pins shard={pins.shard} and data=1 contradict: state is sharded over replicas"
    if pins.shard not in (None, "none") and pins.schedule in SPLIT_BACKWARD:
        yield f"pins shard={pins.shard} and schedule={pins.schedule} contradict: sharded state needs whole backwards"
    fixed = {"full": True, "none": False}.get(problem.settings.recompute)
    if None not in (fixed, pins.recompute) and fixed != pins.recompute:
        wanted = str(pins.recompute).lower()
        yield f"pin recompute={wanted} contradicts the setting recompute={problem.settings.recompute}"


def _stage_contradictions(problem: Problem) -> Iterator[str]:
    names = [block.name for block in problem.graph.blocks]
    for name, _ in problem.pins.stage_of:
        if name not in names:
            raise UsageError(f"pin {name}@stage: the model has no block {name}; its blocks: {_some(names)}")
    ordered = sorted((names.index(name), stage, name) for name, stage in problem.pins.stage_of)
    for (i, low, first), (j, high, second) in pairwise(ordered):
        if not low <= high <= low + j - i:
            why = "a stage would be empty" if high > low else "stages follow the order of the blocks"
            yield f"pins {first}@stage={low} and {second}@stage={high} contradict: {why}"
    for index, stage, name in ordered:
        if stage < 0 or stage > index:
            yield f"pin {name}@stage={stage} contradicts the model: only {index} blocks come before it"
        most = (problem.pins.pipeline or problem.cluster.size) * MOST_VIRTUAL
        if problem.pins.schedule not in (None, "interleaved"):
            most = problem.pins.pipeline or problem.cluster.size
        if stage >= most:
            known = (
                f"pin pipeline={problem.pins.pipeline}" if problem.pins.pipeline else f"{problem.cluster.size} devices"
            )
            yield f"pin {name}@stage={stage} contradicts {known}: there are at most {most} stages, counted from 0"


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@cache
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of `number`, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`."""
    return tuple(1 << e for e in range(most.bit_length()) if 1 << e <= most)
