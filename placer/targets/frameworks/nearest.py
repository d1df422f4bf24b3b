"""Plans that a framework can be told: the same search under pins to what it has words for.

pins       no axis that nobody has; degree 1 of every axis the framework lacks; no pipeline where it has none
grid       of each sharding it has, with and without recompute, each schedule of its pipelines
among them the fastest plan of which the framework lacks nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.plans.plan import ScheduleName
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem, Solution
from placer.targets.frameworks.abilities import Abilities
from placer.targets.frameworks.even_rows import with_even_rows
from placer.targets.frameworks.export import framework, inexpressible

# How fields of pins are called as degrees.
AXES = {"tensor": "tensor", "sequence": "context", "expert": "expert"}
# Of a chain of stages where nothing else is asked.
PLAIN: ScheduleName = "1f1b"


def nearest(problem: Problem, name: str, strategy: str = "auto") -> Solution:
    """The fastest plan found of this problem that the framework called `name` can be told.

    Its bound is of the plans under the pins it was found with. Raises InfeasibleError where none was found, with what
    the framework lacked of the plans that were; UsageError where the problem's own pins contradict themselves.
    """
    found: list[Solution] = []
    lacking: dict[str, None] = {}
    for pins in _pins(problem.pins, framework(name).ABILITIES):
        if found and problem.spent:
            break
        try:
            solution = with_even_rows(problem, solve_with(replace(problem, pins=pins), strategy))
        except InfeasibleError as error:
            lacking.setdefault(str(error.infeasible.binding))
            continue
        reasons = inexpressible(solution.plan, name)
        lacking.update(dict.fromkeys(reasons))
        if not reasons:
            found.append(solution)
    if not found:
        raise InfeasibleError(
            Infeasible(
                binding=f"no plan was found that {name} can be told: {'; '.join(lacking)}",
                advice="export to another framework, or run the plan with `placer execute`",
            )
        )
    return min(found, key=_seconds)


def _seconds(solution: Solution) -> float:
    assert solution.plan.ledger is not None  # the judge put it there
    return solution.plan.ledger.step_seconds


def _pins(asked: Pins, can: Abilities) -> Iterator[Pins]:
    """The pins to search under, those that allow most first. Raises UsageError where what is asked for is lacked."""
    pins = _degrees_within(asked, can)
    if not can.schedules:
        if (pins.pipeline or 1) > 1:
            raise UsageError(f"{can.framework} has no pipelines, and pipeline={pins.pipeline} is pinned")
        pins = replace(pins, pipeline=1, schedule=pins.schedule or PLAIN)
    schedules = sorted(can.schedules, key=lambda one: one != PLAIN) or [PLAIN]
    for schedule, shard, again in product(schedules, sorted(can.shardings), (False, True)):
        if pins.schedule in (None, schedule) and pins.shard in (None, shard) and pins.recompute in (None, again):
            yield replace(pins, schedule=schedule, shard=shard, recompute=again)


def _degrees_within(asked: Pins, can: Abilities) -> Pins:
    """The pins with degree 1 of each axis the framework lacks. Raises UsageError where another one is pinned."""
    lacked = {axis: count for axis, count in asked.axes if AXES.get(axis) not in can.degrees}
    for axis, count in lacked.items():
        if (count or 1) > 1:
            raise UsageError(f"{can.framework} has no parallelism along {axis}, and {axis}={count} is pinned")

    def degree(axis: str, count: int | None) -> int | None:
        return 1 if axis in lacked else count

    return replace(
        asked, tensor=degree("tensor", asked.tensor), height=1, width=1, sequence=degree("sequence", asked.sequence),
        expert=degree("expert", asked.expert),
    )  # fmt: skip
