"""Cases of `verify` whose stages lie on meshes of different shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from examples.parity.cases import Case, plan_of
from examples.parity.named_splits import Picker, split_plan
from examples.parity.processes import processes
from mesh_plans import Side
from placer.plans.plan import Plan


def on_meshes(case: Case, sides: Sequence[Side | int]) -> Plan:
    """The plan of `case` with a stage for each of `sides` (numbers are of replicas)."""
    given = [Side(replicas=side) if isinstance(side, int) else side for side in sides]
    made = plan_of(replace(case, positions=len(given)))
    return _placed(made, given, [1] * len(given))


def with_degrees(
    case: Case, sides: Sequence[Side | int], degrees: Sequence[int], pick: Picker, borders: str = "whole"
) -> Plan:
    """`on_meshes` with replicas of so many devices, over which `pick` cuts the ops of the stage."""
    given = [Side(replicas=side) if isinstance(side, int) else side for side in sides]
    base = replace(case, positions=len(given))
    wanted = sorted({degree for degree in degrees if degree > 1})
    layouts = tuple(split_plan(base, degree, pick, borders).layouts[0] for degree in wanted)
    made = plan_of(base)
    stages = tuple(
        replace(stage, degree=degree, layout=wanted.index(degree) if degree > 1 else None)
        for index, stage in enumerate(made.stages)
        for degree in [degrees[index % len(degrees)]]
    )
    return _placed(replace(made, layouts=layouts, stages=stages), given, degrees)


def _placed(made: Plan, given: Sequence[Side], degrees: Sequence[int]) -> Plan:
    sizes = [side.replicas * degree for side, degree in zip(given, degrees, strict=True)]
    ends = list(accumulate(sizes, initial=0))
    stages = tuple(
        replace(
            stage,
            devices=tuple(range(ends[at], ends[at + 1])),
            shares=given[at].shares,
            sharding=given[at].sharding,
        )
        for index, stage in enumerate(made.stages)
        for at in [index % len(given)]
    )
    return replace(made, stages=stages, cluster=processes(ends[-1]))
