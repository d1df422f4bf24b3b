"""The collectives FSDP2 issues for the sharded stages of a step (torch 2.13, implicit backward prefetch).

A unit is gathered before its forward if it is not, and given up after it with sharding `parameters` (the root is kept).
Before its backward a unit is gathered if it is not, and so is the unit whose forward ended before its own latest one:
FSDP2 forgets forwards at the end of a step only, so that the first block of a microbatch prefetches the last unit of
the forward before (`FSDPParamGroup._backward_prefetch`). After its backward a unit is given up. Gradients are scattered
in the backward of the last microbatch only: of each unit when its inputs' gradients are made; of the root, and of
blocks whose inputs need no gradient, when the whole backward has ended. A unit that is frozen scatters nothing; where
its inputs need no gradient either it has no backward, and stays gathered once another's backward has prefetched it.
Parameters without dims are in no unit. Where only the step tells which values have gradients, every backward comes to
every unit, and the root alone ends last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from placer.plans.plan import Plan
from placer.plans.schedule import Action
from placer.program.buckets import ShardUnit, between_replicas, parameter_users, shard_units
from placer.program.instructions import Collective
from placer.program.told import told_weights


@dataclass(slots=True, kw_only=True)
class _Units:
    """What FSDP2 knows of a stage's units during a step, by block: those gathered, and the order of forwards so far."""

    units: tuple[ShardUnit, ...]
    keeps: bool
    late: frozenset[int]
    gathered: set[int] = field(default_factory=set)
    order: list[ShardUnit] = field(default_factory=list)
    places: dict[int, list[int]] = field(default_factory=dict)

    def forward(self) -> Iterator[tuple[ShardUnit, bool]]:
        """Blocks run in order inside the root; a block's end is noted before the root's."""
        for unit in self.units:
            yield from self._gather(unit)
            if not self.keeps and unit.block >= 0:
                self.gathered.discard(unit.block)
        for unit in sorted(self.units, key=lambda unit: unit.block < 0):
            self.places.setdefault(unit.block, []).append(len(self.order))
            self.order.append(unit)

    def backward(self, reduces: bool) -> Iterator[tuple[ShardUnit, bool]]:
        """The root's backward starts first and ends last; blocks run in reverse, each prefetching what ran before."""
        for unit in sorted(self.units, key=lambda unit: (unit.block >= 0, -unit.block)):
            if not self._runs_backward(unit):
                continue
            yield from self._gather(unit)
            place = self.places[unit.block].pop()
            if place:
                yield from self._gather(self.order[place - 1])
            if unit.block not in self.late:
                self.gathered.discard(unit.block)
                if reduces:
                    yield unit, True
        self.gathered -= {unit.block for unit in self.units if unit.block in self.late and self._runs_backward(unit)}
        if reduces:
            yield from ((unit, True) for unit in self.units if unit.block in self.late)

    def _runs_backward(self, unit: ShardUnit) -> bool:
        return unit.block < 0 or unit.block not in self.late or unit.gradient_bytes > 0

    def _gather(self, unit: ShardUnit) -> Iterator[tuple[ShardUnit, bool]]:
        if unit.block not in self.gathered:
            self.gathered.add(unit.block)
            yield unit, False


def sharded_collectives(
    plan: Plan, stage: int, ranks: tuple[int, ...], own: tuple[Action, ...], inner: int = 0
) -> dict[Action, tuple[Collective, ...]]:
    """The collectives of one stage, by the action that issues them. `own`: the stage's actions in order."""
    units = shard_units(plan, stage, inner)
    keeps = plan.stages[stage].sharding == "gradients"
    state = _Units(units=units, keeps=keeps, late=_scattered_late(plan, stage, units))
    found = {}
    for action in own:
        issued = state.forward() if action.kind == "F" else state.backward(action == own[-1])
        found[action] = tuple(
            _collective(plan, stage, ranks, unit, scatter)
            for unit, scatter in issued
            if unit.gradient_bytes or not scatter
        )
    return found


def _scattered_late(plan: Plan, stage: int, units: tuple[ShardUnit, ...]) -> frozenset[int]:
    """The root, and blocks with no differentiable input: their backward ends without a trace in autograd.

    A parameter of several blocks that trains is an input of each of them.
    """
    if told_weights(plan.graph):
        return frozenset({-1})
    users, parameters = parameter_users(plan, stage), plan.graph.parameters
    given = {name for name, blocks in users.items() if len(blocks) > 1 and parameters[name].trainable}

    def differentiable(block: int) -> bool:
        inputs = plan.graph.blocks[block].inputs
        if not given.isdisjoint(plan.graph.blocks[block].parameters):
            return True
        return any(reference.startswith("b") and plan.graph.value(reference).requires_grad for reference in inputs)

    return frozenset(unit.block for unit in units if unit.block < 0 or not differentiable(unit.block))


def _collective(plan: Plan, stage: int, ranks: tuple[int, ...], unit: ShardUnit, scatter: bool) -> Collective:
    dtype, size = between_replicas(unit.dtype, unit.gradient_bytes, plan.settings)
    return Collective(
        kind="reduce_scatter" if scatter else "all_gather",
        engine="fsdp",
        purpose="gradients" if scatter else "parameters",
        ranks=ranks,
        bytes=size if scatter else unit.bytes,
        stage=stage,
        unit="root" if unit.block < 0 else plan.graph.blocks[unit.block].name,
        overlaps=plan.settings.overlap and not plan.cluster.on_cpus(plan.stages[stage].devices),
        dtype=dtype if scatter else unit.dtype,
    )
