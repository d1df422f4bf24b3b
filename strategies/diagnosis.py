"""Why nothing fits: what binds, and by how many GiB.

Looked at in this order: a block over-full even alone on a device, at the fewest rows, in the most economical way the
pins and settings allow; else the whole model against all devices together; else the layout that comes nearest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from placer.errors import Infeasible
from placer.search import Problem
from placer.strategies.even import even_cuts
from placer.strategies.floors import Bounds
from placer.strategies.judging import GIB, judge
from placer.strategies.space import (
    Outline,
    microbatch_rows,
    plan_of,
    position_counts,
    recomputes,
    replica_counts,
    schedules,
    shardings,
)

# Even layouts judged to find the nearest one.
TRIED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What a block needs alone, beside what the roomiest device has."""

    block: int
    bytes: int
    room: int
    how: str


def what_binds(problem: Problem, bounds: Bounds) -> Infeasible:
    """What no plan of `problem` can satisfy."""
    frugal = list(_frugal(problem))
    if not frugal:
        return Infeasible(
            binding="pins: together they leave no layout of this model on this cluster", advice="Drop one of the pins"
        )
    needs = [_least(bounds, frugal, block) for block in _one_of_each_class(problem)]
    worst = max(needs, key=lambda need: need.bytes - need.room)
    if worst.bytes > worst.room:
        return _block_binds(problem, worst)
    return _nearest(problem, frugal)


def _block_binds(problem: Problem, need: _Need) -> Infeasible:
    name = problem.graph.blocks[need.block].name
    sizes = f"{need.bytes / GIB:.2f} GiB of {need.room / GIB:.2f} GiB"
    return Infeasible(
        binding=f"memory: block {name} needs {sizes} even alone {need.how}, "
        f"{(need.bytes - need.room) / GIB:.2f} GiB too much",
        advice="Use devices with more memory, more devices to shard over, fewer rows or finer blocks",
    )


def _frugal(problem: Problem) -> Iterator[Outline]:
    """For every number of positions and sharding the outlines of most replicas and fewest rows."""
    for positions in position_counts(problem):
        for replicas in sorted({*replica_counts(problem, positions)[:1], *replica_counts(problem, positions)[-1:]}):
            for rows in {*microbatch_rows(problem, replicas)[:1], *microbatch_rows(problem, replicas)[-1:]}:
                for schedule, virtual in schedules(problem, positions)[:1]:
                    for sharding in shardings(problem.pins, replicas, schedule):
                        yield Outline(
                            positions=positions, replicas=replicas, virtual=virtual, rows=problem.rows,
                            microbatch=rows, schedule=schedule, sharding=sharding,
                        )  # fmt: skip


def _least(bounds: Bounds, frugal: Iterable[Outline], block: int) -> _Need:
    """The least any layout asks of a device that holds `block` alone, on the device with most room."""
    chips = bounds.problem.cluster.devices
    room = max(chip.memory_bytes - chip.overhead_bytes for chip in chips)
    found = [(bounds.run_bytes(outline, block, block + 1, 1), str(outline), outline) for outline in frugal]
    size, _, outline = min(found)
    how = (
        f"with {outline.sharding} sharded over {outline.replicas} devices"
        if outline.sharding != "none"
        else "on a device"
    )
    return _Need(block=block, bytes=size, room=room, how=how)


def _one_of_each_class(problem: Problem) -> list[int]:
    first: dict[int, int] = {}
    for index, block in enumerate(problem.graph.blocks):
        first.setdefault(block.kind, index)
    return list(first.values())


def _nearest(problem: Problem, frugal: list[Outline]) -> Infeasible:
    """The even layout whose fullest device is over by the fewest bytes."""
    chips, blocks = problem.cluster.devices, len(problem.graph.blocks)
    best: tuple[int, str] | None = None
    for outline in sorted(frugal, key=lambda made: (-made.positions * made.replicas, made))[:TRIED]:
        for again in recomputes(problem):
            cuts = even_cuts([1.0] * blocks, outline.stages)
            verdict = judge(plan_of(problem, outline, cuts, (again,) * outline.stages))
            excess = max(
                held.total - min(chips[d].memory_bytes for d in outline.devices(position))
                for position, held in enumerate(verdict.ledger.memory)
            )
            if verdict.violations and (best is None or excess < best[0]):
                best = excess, f"{outline}: {verdict.complaint}"
    binding = best[1] if best else "the rules leave no plan"
    return Infeasible(
        binding=f"memory: no layout fits; the nearest even one, {binding}",
        advice="Use more devices, devices with more memory, or fewer rows",
    )
