"""Neighbourhood: what moves may choose from, and what they say of a plan.

In: a Problem and the layouts that stages may have. A plan that is moved has all of these layouts (`adopted`), so that a
stage changes its own by a number; `tidied` leaves those that are used.

A position is the stages on one set of devices: stage s is at position s % positions. Its devices are units, one of
`degree` devices for each replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TypeAlias

from placer.cluster.topology import replica_groups
from placer.costs.costs import Costs
from placer.io.memo import remembered
from placer.plans.known_stages import KnownStage
from placer.plans.plan import Layout, Plan, Recompute, ScheduleName, Stage
from placer.plans.schedule import BRANCHED
from placer.search.problem import Problem
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import pinned_stage, recomputes

Unit: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """All plans of `problem` whose stages have one of `layouts` or none."""

    problem: Problem
    layouts: tuple[Layout, ...]
    #: What `repair` makes of stages under a schedule, for microbatches of so many rows; None where it can not.
    repaired_stages: dict[tuple[KnownStage, ScheduleName, int], Stage | None] = field(default_factory=dict)

    @staticmethod
    def of(problem: Problem, layouts: Iterable[Layout], plans: Iterable[Plan] = ()) -> Neighbourhood:
        """The one of these layouts and of those that `plans` have."""
        more = (layout for plan in plans for layout in plan.layouts)
        return Neighbourhood(problem, tuple(dict.fromkeys((*layouts, *more))))

    @property
    def costs(self) -> Costs:
        """What plans are priced by."""
        return self.problem.costs

    @cached_property
    def pinned(self) -> dict[int, int]:
        """The stage of each pinned block."""
        return pinned_stage(self.problem)

    @cached_property
    def recomputes(self) -> tuple[Recompute, ...]:
        """Allowed answers to whether a stage recomputes."""
        return recomputes(self.problem)

    @property
    def fixed(self) -> bool:
        """Whether the settings or a pin fix recompute, of all blocks."""
        return len(self.recomputes) == 1

    @cached_property
    def numbers(self) -> tuple[int | None, ...]:
        """What a stage's layout may be."""
        return (None, *range(len(self.layouts)))

    @cached_property
    def any_apart(self) -> bool:
        """Whether some layout has devices with rows of their own."""
        return any(layout.apart > 1 for layout in self.layouts)

    @cached_property
    def blocks(self) -> BlockGraph:
        """What the blocks read of each other."""
        return BlockGraph.of(self.problem.graph)

    @cached_property
    def branches(self) -> bool:
        """Whether stages may be a graph that is no chain."""
        return self.problem.pins.schedule in (None, *BRANCHED) and self.blocks.branches

    @property
    def kinds(self) -> tuple[int, ...]:
        """Of each device the first one like it."""
        return self.costs.block_times.device_class

    def degree(self, layout: int | None) -> int:
        """The devices of a replica under a layout."""
        return 1 if layout is None else self.layouts[layout].degree

    def apart(self, layout: int | None) -> int:
        """Into how many equal parts the rows of a replica go."""
        return 1 if layout is None else self.layouts[layout].apart

    @remembered
    def groups(self, degree: int) -> tuple[Unit, ...]:
        """The devices that may be a replica."""
        return replica_groups(self.problem.cluster, degree)

    def holds(self, stage: Stage) -> bool:
        """Whether the replicas of a stage are such groups; what others cost is not known exactly."""
        return stage.degree == 1 if stage.layout is None else self._holds(stage.layout, stage.devices)

    @remembered
    def _holds(self, layout: int, devices: tuple[int, ...]) -> bool:
        return self.costs.under(self.layouts[layout]).block_times.holds(devices)

    def free(self, plan: Plan, degree: int) -> list[Unit]:
        """The groups of so many devices of which no stage uses any."""
        used = set(chain.from_iterable(stage.devices for stage in plan.meshes))
        if len(used) == self.problem.cluster.size:
            return []
        return [unit for unit in self.groups(degree) if used.isdisjoint(unit)]

    def within(self, devices: Iterable[int], degree: int) -> list[Unit]:
        """The groups of so many devices that these devices make."""
        if degree == 1:
            return [(device,) for device in devices]
        own, groups, begun = set(devices), self.groups(degree), self._begun(degree)
        numbers = sorted([begun[device] for device in own if device in begun])
        return [groups[number] for number in numbers if own.issuperset(groups[number])]

    @remembered
    def _begun(self, degree: int) -> dict[int, int]:
        """The number of each group of so many devices, by the first of them."""
        return {unit[0]: number for number, unit in enumerate(self.groups(degree))}

    def known(self, plan: Plan) -> Plan:
        """A plan adopted before there were as many layouts, with all of them: numbers stay."""
        return plan if plan.layouts is self.layouts else replace(plan, layouts=self.layouts)

    def adopted(self, plan: Plan) -> Plan:
        """The plan with all layouts, without what was found out about it; raises ValueError for another layout."""
        number = {old: self.layouts.index(layout) for old, layout in enumerate(plan.layouts)}
        stages = tuple(s if s.layout is None else replace(s, layout=number[s.layout]) for s in plan.stages)
        return self.plan(
            stages=stages, schedule=plan.schedule, microbatches=plan.microbatches, bucket_bytes=plan.bucket_bytes
        )

    def plan(
        self, *, stages: tuple[Stage, ...], schedule: ScheduleName, microbatches: tuple[int, ...], bucket_bytes: int
    ) -> Plan:
        """The plan of these choices, with all layouts."""
        problem = self.problem
        return Plan(
            model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings, stages=stages,
            schedule=schedule, microbatches=microbatches, layouts=self.layouts, seed=problem.seed,
            bucket_bytes=bucket_bytes,
        )  # fmt: skip


def tidied(plan: Plan) -> Plan:
    """The plan with the layouts that it uses, in the order of its stages."""
    used = tuple(dict.fromkeys(stage.layout for stage in plan.stages if stage.layout is not None))
    stages = tuple(s if s.layout is None else replace(s, layout=used.index(s.layout)) for s in plan.stages)
    return replace(plan, stages=stages, layouts=tuple(plan.layouts[number] for number in used))


def units(stage: Stage) -> list[Unit]:
    """The devices of each replica."""
    if stage.degree == 1:
        return [(device,) for device in stage.devices]
    return [stage.devices[at : at + stage.degree] for at in range(0, len(stage.devices), stage.degree)]


def devices_of(chosen: Iterable[Unit]) -> tuple[int, ...]:
    """The devices of replicas, one after the other."""
    return tuple(chain.from_iterable(chosen))


def at_position(plan: Plan, position: int, change: Callable[[Stage], Stage]) -> Plan:
    """The plan with all stages of a position changed."""
    return at_positions(plan, {position: change})


def at_positions(plan: Plan, changes: Mapping[int, Callable[[Stage], Stage]]) -> Plan:
    """The plan with all stages of some positions changed, each in its own way."""
    stages = list(plan.stages)
    for position, change in changes.items():
        for index in plan.stages_at[position]:
            stages[index] = change(stages[index])
    return replace(plan, stages=tuple(stages))


def everywhere(plan: Plan, change: Callable[[Stage], Stage]) -> Plan:
    """The plan with every stage changed."""
    return replace(plan, stages=tuple(map(change, plan.stages)))


def loops(plan: Plan) -> bool:
    """Whether positions have several stages of a chain."""
    return len(plan.stages) > plan.positions and not is_graph(plan)


def is_graph(plan: Plan) -> bool:
    """Whether stages are a graph, any number of them at a position."""
    return plan.schedule in BRANCHED
