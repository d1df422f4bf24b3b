"""The collectives FSDP2 issues for the sharded stages of a step (torch 2.13, implicit backward prefetch).

A unit is gathered before its forward if it is not, and given up after it with sharding `parameters` (the root is kept).
Before its backward a unit is gathered if it is not, and the unit before it prefetched; after its backward it is given
up. Gradients are scattered in the backward of the last microbatch only: of each unit when its inputs' gradients are
made; of the root, and of blocks whose inputs need no gradient, when the whole backward has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from placer.plans import Plan
from placer.program.buckets import ShardUnit, shard_units
from placer.program.instructions import Collective
from placer.schedule import Action


def sharded_collectives(
    plan: Plan, stage: int, ranks: tuple[int, ...], own: tuple[Action, ...]
) -> dict[Action, tuple[Collective, ...]]:
    """The collectives of one stage, by the action that issues them. `own`: the stage's actions in order."""
    units = shard_units(plan, stage)
    keeps = plan.stages[stage].sharding == "gradients"
    late = _scattered_late(plan, units)
    gathered: set[int] = set()
    found = {}
    for action in own:
        if action.kind == "F":
            issued = list(_forward(units, gathered, keeps))
        else:
            issued = list(_backward(units, gathered, late, reduces=action == own[-1]))
        found[action] = tuple(_collective(plan, stage, ranks, unit, scatter) for unit, scatter in issued)
    return found


def _forward(units: tuple[ShardUnit, ...], gathered: set[int], keeps: bool) -> Iterator[tuple[ShardUnit, bool]]:
    for unit in units:
        if unit.block not in gathered:
            yield unit, False
        if keeps or unit.block < 0:
            gathered.add(unit.block)


def _backward(
    units: tuple[ShardUnit, ...], gathered: set[int], late: frozenset[int], *, reduces: bool
) -> Iterator[tuple[ShardUnit, bool]]:
    """The root's backward starts first and ends last; blocks run in reverse, each prefetching the one before it."""
    root, blocks = [u for u in units if u.block < 0], [u for u in reversed(units) if u.block >= 0]
    order = [*root, *blocks]
    for index, unit in enumerate(order):
        for wanted in order[index : index + 2]:
            if wanted.block not in gathered:
                gathered.add(wanted.block)
                yield wanted, False
        if reduces and unit.block not in late:
            yield unit, True
    gathered.clear()
    if reduces:
        yield from ((unit, True) for unit in units if unit.block in late)


def _scattered_late(plan: Plan, units: tuple[ShardUnit, ...]) -> frozenset[int]:
    """The root, and blocks with no differentiable input: their backward ends without a trace in autograd."""

    def differentiable(block: int) -> bool:
        inputs = plan.graph.blocks[block].inputs
        return any(reference.startswith("b") and plan.graph.value(reference).requires_grad for reference in inputs)

    return frozenset(unit.block for unit in units if unit.block < 0 or not differentiable(unit.block))


def _collective(plan: Plan, stage: int, ranks: tuple[int, ...], unit: ShardUnit, scatter: bool) -> Collective:
    return Collective(
        kind="reduce_scatter" if scatter else "all_gather",
        engine="fsdp",
        purpose="gradients" if scatter else "parameters",
        ranks=ranks,
        bytes=unit.gradient_bytes if scatter else unit.bytes,
        stage=stage,
        unit="root" if unit.block < 0 else plan.graph.blocks[unit.block].name,
        overlaps=plan.settings.overlap,
    )
