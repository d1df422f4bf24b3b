"""What may be chosen: the space every exact strategy searches, and the plans in it.

In: a Problem. Out: `Outline`s (everything but where to cut and which stages recompute) and the Plan an outline makes.

The space, stated once:
    layout: none, or one of `layouts.layouts`, the same at every position: a replica is then t = `degree` devices
    positions p and replicas d, the same at every position, with p * d * t <= devices; devices beyond p * d * t stay
        unused. On more than `MANY_DEVICES` devices d is p's full share of them, or divides their number or a node's,
        or is a power of two ("them": of unlike devices also any choice of their classes).
    device order: that of the cluster, position by position and replica by replica; where devices are not all alike also
        those of `device_orders`: classes left out, in any order, position by position or replica by replica
    shares: equal; where replicas are on unlike devices also those of `row_shares`, the same at every position
    virtual stages v per position, at most `MOST_VIRTUAL`; v > 1 exactly under `interleaved`; one position always runs
        `1f1b` (one microbatch after the other) unless another schedule is pinned
    cuts: p * v runs of consecutive blocks, none empty; with v > 1 all of the same number of blocks, or one more (the
        closed step time is that of even turns, and uneven ones only trade memory for a bubble it does not see), and
        where blocks do not repeat at most `FEW_STAGES` of them
    microbatches of R rows, R >= d, the last one the rest (of fewer than d rows some replicas have none); in a batch
        of more than `MANY_ROWS` rows R is the batch, or d times a divisor of rows/d or a power of two
    sharding: one choice for the whole plan; sharded only where d > 1, no position is on GPUs and CPUs, and gradients
        only where the backward is whole (not `zero-bubble`)
    a layout along `rows` or `expert` gives each device rows of its own: R and the last microbatch are multiples of
        d * t
    recompute: per stage none, selective (all but products) or all
    fusion of gradients: buckets of one of `gradient_buckets.SIZES`, one size for the plan

On up to `submesh.MOST_DEVICES` devices, for models of up to `submesh.MOST_BLOCKS` blocks, positions also have
submeshes of their own, all else being as above:
    submesh: of each position its own replicas d and layout (none along `rows` or `expert`), d <= R; two positions or
        more, one stage each
    device order: a position lies on like devices of like nodes (of `device_orders.group_classes`), on the first
        replicas behind those of the position before it, or on the first of a class that none before it uses, the
        classes in an order of `class_orders`; shares are equal
    sharding: one choice, of the positions that have replicas; the others keep their state whole
    microbatches of R rows as for one replica
    values that cannot be divided by rows pass only between neighbours that divide rows alike
On up to `submesh.MOST_TWO_SHAPE_DEVICES` devices, for up to `submesh.MOST_TWO_SHAPE_BLOCKS` blocks, those of them that
are two-shape pipelines: two submeshes, one after the other, each filling its share of the devices, which is one of few
(see `two_shapes.family`). On more devices, and for more blocks, positions are alike. A pin of the replicas or of an
axis holds at every position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

from placer.costs.step_estimate import with_best_buckets
from placer.errors import UsageError
from placer.plans.plan import BY_FSDP, Layout, Plan, Recompute, ScheduleName, Sharding, Stage, replica_rows
from placer.plans.schedule import SPLIT_BACKWARD
from placer.search.problem import Problem
from placer.strategies.space.device_orders import group_count, group_totals, is_mixed

MANY_DEVICES = 32
MANY_ROWS = 32
MOST_VIRTUAL = 4


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Outline:
    """A plan without its cuts: `rows` is the global batch, `microbatch` the rows of each but the last.

    `layout` is the number of one of the problem's layouts of `degree` devices a replica, -1 for none. `device_order`:
    the devices position by position (empty: the first of the cluster in order), `shares` those of the replicas (empty:
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
    device_order: tuple[int, ...] = ()
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
        return self.device_order or tuple(range(self.positions * self.replicas * self.degree))

    def sharded(self, sharding: Sharding) -> Outline:
        """The same with its state kept another way."""
        return replace(self, sharding=sharding)

    def devices(self, position: int) -> tuple[int, ...]:
        """The devices of a position."""
        count = self.replicas * self.degree
        own = range(position * count, (position + 1) * count)
        return self.device_order[own.start : own.stop] if self.device_order else tuple(own)

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
    """Every outline that pins which do not contradict allow, in a fixed order."""
    for positions in position_counts(problem):
        for replicas in replica_counts(problem, positions):
            for microbatch in microbatch_rows(problem, replicas):
                for schedule, virtual in schedules(problem, positions):
                    for sharding in shardings(problem, replicas, schedule):
                        yield Outline(
                            positions=positions, replicas=replicas, virtual=virtual, rows=problem.rows,
                            microbatch=microbatch, schedule=schedule, sharding=sharding,
                        )  # fmt: skip


def plan_of(
    problem: Problem, outline: Outline, cuts: tuple[int, ...], recompute: tuple[Recompute, ...],
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
    return fused(problem, made)


def fused(problem: Problem, plan: Plan) -> Plan:
    """The plan with its gradients in the best buckets, or in pinned ones."""
    bucket = problem.pins.bucket
    return with_best_buckets(problem.costs, plan) if bucket is None else replace(plan, bucket_bytes=bucket)


def position_counts(problem: Problem, degree: int = 1) -> tuple[int, ...]:
    """Allowed numbers of pipeline positions with replicas of `degree` devices."""
    most = min(len(problem.graph.blocks), group_count(problem.cluster, degree))
    pinned = problem.pins.pipeline
    least = 1 + max((stage for _, stage in problem.pins.stage_of), default=0) // MOST_VIRTUAL
    return tuple(p for p in range(least, most + 1) if pinned in (None, p))


def replica_counts(problem: Problem, positions: int, degree: int = 1) -> tuple[int, ...]:
    """Allowed numbers of replicas, of `degree` devices each, of each of `positions` positions."""
    cluster = problem.cluster
    most = min(group_count(cluster, degree) // positions, 1 if whole_batch(problem) else problem.rows)
    if problem.pins.data is not None:
        return (problem.pins.data,) if problem.pins.data <= most else ()
    if cluster.size <= MANY_DEVICES:
        return tuple(range(1, most + 1))
    nodes = {node.size for node, _ in cluster.groups}
    likely = {*divisors(cluster.size), *powers_of_two(most), most, *(d for n in nodes for d in divisors(n))}
    if is_mixed(cluster, degree):
        likely |= {d for own in group_totals(cluster, degree) for d in _likely_replicas(own * degree, own // positions)}
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


def shardings(problem: Problem, replicas: int, schedule: ScheduleName) -> tuple[Sharding, ...]:
    """Allowed ways to keep the state of `replicas` replicas under `schedule`."""
    by_fsdp = schedule not in SPLIT_BACKWARD and not problem.mixed_types
    free = tuple(kept for kept in get_args(Sharding) if by_fsdp or kept not in BY_FSDP)
    return tuple(kept for kept in (free if replicas > 1 else free[:1]) if problem.pins.shard in (None, kept))


# What each setting fixes.
FIXED: dict[str, Recompute] = {"none": False, "selective": "selective", "full": True}
# From the fewest seconds to the most.
RECOMPUTES: tuple[Recompute, ...] = (False, "selective", True)


def recomputes(problem: Problem) -> tuple[Recompute, ...]:
    """Allowed answers to whether a stage recomputes its forward, those first that take fewest seconds."""
    if problem.settings.recompute != "auto":
        return tuple(again for again in RECOMPUTES if again == FIXED[problem.settings.recompute])
    return RECOMPUTES if problem.pins.recompute is None else (problem.pins.recompute,)


def whole_batch(problem: Problem) -> bool:
    """Whether rows mix before the loss: no replicas and one microbatch."""
    return bool(problem.whole_batch)


def pinned_stage(problem: Problem) -> dict[int, int]:
    """The stage each pinned block must lie in, by block index."""
    index = {block.name: i for i, block in enumerate(problem.graph.blocks)}
    return {index[name]: stage for name, stage in problem.pins.stage_of}


def stage_allowed(pinned: dict[int, int], stage: int, first: int, last: int) -> bool:
    """Whether stage `stage` may be blocks `first` to `last`."""
    return all((first <= block < last) == (wanted == stage) for block, wanted in pinned.items())


def schedule_name(name: str) -> ScheduleName:
    """`name` as a schedule. Raises UsageError listing the known ones."""
    for known in get_args(ScheduleName):
        if known == name:
            found: ScheduleName = known
            return found
    raise UsageError(f"pin schedule={name} is unknown; known: {', '.join(get_args(ScheduleName))}")


@cache
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of `number`, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`."""
    return tuple(1 << e for e in range(most.bit_length()) if 1 << e <= most)
