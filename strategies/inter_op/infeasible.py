"""Why nothing fits: what binds, and by how many GiB.

Before a search: a block over-full even alone on a device, at the fewest rows, in the most economical way that the
settings and the pins of anything but stages allow. After a search that found nothing: pins that leave no layout; a
block as before, in a way that all pins allow; else the layout that comes nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from placer.costs.memory.peak import position_memory, stage_memory
from placer.errors import Infeasible
from placer.graph import Affine, Graph
from placer.io.units import room_text
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Layout, Plan
from placer.search.judge import Verdict, judge
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.outline import OutlineBounds, least_in_flight
from placer.strategies.inter_op.partition.even import even_cuts
from placer.strategies.space.axes import WHOLE, ReplicaAxis
from placer.strategies.space.outline import (
    Outline,
    microbatch_rows,
    plan_of,
    position_counts,
    recomputes,
    replica_counts,
    schedules,
    shardings,
)
from placer.strategies.space.pin_conflicts import no_layout

# Even layouts judged to find the nearest one.
TRIED = 64

# The costs of the model under a layout, and an outline of that.
_Way: TypeAlias = tuple[OutlineBounds, Outline]
# The costs of the model under a layout, and that.
_View: TypeAlias = tuple[OutlineBounds, Layout | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What a block needs alone, and how it is laid out then."""

    block: int
    bytes: int
    how: str


def block_binds(problem: Problem, all_bounds: Collection[OutlineBounds]) -> Infeasible | None:
    """The block that no plan of `problem` has room for, however it cuts the model into stages; `all_bounds` of the
    model whole and under each layout."""
    return _block_binds(problem, lambda: _ways(problem, all_bounds, {1}))


def uncut(problem: Problem) -> Infeasible:
    """What a pinned axis binds along which no layout cuts anything: of values between blocks nothing can be cut."""
    axes = [(axis, degree) for axis, degree in problem.pins.axes if degree and degree > 1]
    pinned, name = ", ".join(f"{axis}={degree}" for axis, degree in axes), problem.graph.name
    if problem.graph.granularity == "block" and all(_made_within(problem.graph, *axis) for axis in axes):
        return Infeasible(
            binding=f"the pin {pinned}: no value that a block of {name} passes to another can be cut so, only values "
            "within blocks",
            advice="Take --granularity op, which makes a block of every op, or pin another axis or another number",
        )
    return Infeasible(
        binding=f"the pin {pinned}: no op of {name} can be cut so",
        advice="Pin another axis or another number, or register a split rule for the ops that have none",
    )


def _made_within(graph: Graph, axis: str, degree: int) -> bool:
    """Whether some op makes a value that the axis cuts where it passes between blocks."""
    made = (output for kind in graph.classes for op in kind.ops for output in op.outputs)
    cutting = ReplicaAxis(name=axis, images=True)
    return any(cutting.states([tensor], degree) != (WHOLE,) for tensor in made)


def what_binds(problem: Problem, views: Sequence[_View]) -> Infeasible:
    """What no plan of `problem` can satisfy, where a search of these views has found none."""
    all_bounds = [bounds for bounds, _ in views]

    def has_layout(asked: Problem) -> bool:
        return next(_ways(asked, all_bounds), None) is not None

    if not has_layout(problem):
        return no_layout(problem, has_layout)
    return _block_binds(problem, lambda: _ways(problem, all_bounds)) or _nearest(problem, views)


def _ways(problem: Problem, all_bounds: Collection[OutlineBounds], positions: Collection[int] = ()) -> Iterator[_Way]:
    """The most economical outlines of each layout, of so many positions beside those that the pins allow."""
    for bounds in all_bounds:
        for outline in _frugal(problem, bounds.ranges.costs.degree, positions):
            yield bounds, outline


def _block_binds(problem: Problem, ways: Callable[[], Iterator[_Way]]) -> Infeasible | None:
    """The block that is furthest from its room in each of these ways, which are looked at until one has room."""
    if next(ways(), None) is None:
        return None
    room = max(chip.memory_bytes - chip.overhead_bytes for chip in problem.cluster.devices)
    blocks = _one_of_each_class(problem)
    needs = [_least(ways(), block) for block in blocks if not any(_alone(*way, block) <= room for way in ways())]
    if not needs:
        return None
    need = max(needs, key=lambda need: need.bytes)
    name = problem.graph.blocks[need.block].name
    sizes = f"{room_text(need.bytes)} of {room_text(room)}"
    return Infeasible(
        binding=f"memory: block {name} needs {sizes} even alone {need.how}, {room_text(need.bytes - room)} too much",
        advice="Use devices with more memory, more devices to shard over, fewer rows or finer blocks",
    )


def _frugal(problem: Problem, degree: int = 1, more: Collection[int] = ()) -> Iterator[Outline]:
    """For every number of positions and sharding the outlines of most replicas and fewest rows."""
    for positions in sorted({*position_counts(problem, degree), *more}):
        counts = replica_counts(problem, positions, degree)
        for replicas in sorted({*counts[:1], *counts[-1:]}):
            for rows in {*microbatch_rows(problem, replicas)[:1], *microbatch_rows(problem, replicas)[-1:]}:
                for schedule, virtual in schedules(problem, positions)[:1]:
                    for sharding in shardings(problem, replicas, schedule):
                        yield Outline(
                            positions=positions, replicas=replicas, virtual=virtual, rows=problem.rows,
                            microbatch=rows, schedule=schedule, sharding=sharding, degree=degree,
                        )  # fmt: skip


def _least(ways: Iterator[_Way], block: int) -> _Need:
    """The least any layout asks of a device that holds `block` alone."""
    size, _, outline = min((_alone(*way, block), str(way[1]), way[1]) for way in ways)
    parts = f"split over {outline.degree} devices" if outline.degree > 1 else ""
    state = f"with {outline.sharding} sharded over {outline.replicas} replicas" if outline.sharding != "none" else ""
    how = " and ".join(part for part in (parts, state) if part) or "on a device"
    return _Need(block=block, bytes=size, how=how)


def _alone(bounds: OutlineBounds, outline: Outline, block: int) -> int:
    """Bytes of a device for `block` alone, with one microbatch in flight and no messages, as within a longer stage:
    none with this block needs less."""
    costs, problem = bounds.ranges.costs, bounds.problem
    no = Affine()
    span = replace(costs.ranges.of(block, block + 1), received=no, sent=no, returned=no, staying=no, staying_apart=no)
    sizes = []
    for again in recomputes(problem):
        held = stage_memory(
            span, costs.numerics, costs.priced,
            rows=-(-outline.microbatch // outline.replicas), recompute=again, sharding=outline.sharding,
            replicas=outline.replicas, accumulates=outline.count > 1,
        )  # fmt: skip
        sizes.append(position_memory((held,), least_in_flight(outline)).total)
    return min(sizes)


def _one_of_each_class(problem: Problem) -> list[int]:
    first: dict[int, int] = {}
    for index, block in enumerate(problem.graph.blocks):
        first.setdefault(block.kind, index)
    return list(first.values())


def _nearest(problem: Problem, views: Sequence[_View]) -> Infeasible:
    """The even plan whose fullest device is over by the fewest bytes."""
    best: tuple[int, str, str] | None = None
    for bounds, layout in views:
        for plan in _even(problem, bounds.ranges.costs.degree, layout, TRIED // len(views)):
            verdict = judge(problem.costs, plan, lowered=False)
            excess = _excess(verdict)
            if verdict.violations and (best is None or excess < best[0]):
                best = excess, f"{_told(plan)}: {verdict.complaint}", _offload(verdict)
    binding = best[1] if best else "the rules leave no plan"
    return Infeasible(
        binding=f"memory: no layout fits; the nearest even one, {binding}",
        advice=f"Use more devices, devices with more memory, or fewer rows{best[2] if best else ''}",
        near=best is not None,
    )


def _even(problem: Problem, degree: int, layout: Layout | None, tried: int) -> Iterator[Plan]:
    """Even plans under a layout, those of most devices first."""
    blocks = len(problem.graph.blocks)
    every = sorted(_frugal(problem, degree), key=lambda made: (-made.positions * made.replicas, made))
    for outline in every[: max(1, tried)]:
        for again in recomputes(problem):
            yield plan_of(
                problem, outline, even_cuts([1.0] * blocks, outline.stages), (again,) * outline.stages, layout
            )


def _offload(verdict: Verdict) -> str:
    """What else there is to do where a plan would fit if the hosts, which are known, kept the optimizer's state."""
    plan = verdict.plan
    hosts = all(node.memory_bytes for node in plan.cluster.nodes)
    advised = hosts and plan.settings.offload == "none" and _excess(verdict, lambda held: held.optimizer) <= 0
    return "; or keep the optimizer's state in the hosts' memory: --offload optimizer" if advised else ""


def _excess(verdict: Verdict, apart: Callable[[MemoryBytes], int] = lambda _: 0) -> int:
    """Bytes that the fullest device has too much, but for those `apart`."""
    plan, chips = verdict.plan, verdict.plan.cluster.devices
    return max(
        held.total - apart(held) - min(chips[device].memory_bytes for device in mesh.devices)
        for mesh, held in zip(plan.meshes, verdict.ledger.memory, strict=True)
    )


def _told(plan: Plan) -> str:
    """A plan of like stages in words."""
    stage, axes = plan.stages[0], "".join(f" {axis}={count}" for layout in plan.layouts for axis, count in layout.axes)
    data = f"pipeline={plan.positions} data={stage.replicas}{axes}"
    return f"{data} microbatches={len(plan.microbatches)} {plan.schedule} shard={stage.sharding}"
