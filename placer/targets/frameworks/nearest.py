"""Plans that a framework can be told: the same search under pins to what it has words for.

first      no axis that nobody has; degree 1 of every axis the framework lacks; no pipeline where it has none
then       where the fastest such plan cannot be told: of each schedule it has, then of each sharding, then with and
           without recompute, the most promising first, as long as these may be faster than one that can be told
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush

from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.plans.plan import Recompute, ScheduleName
from placer.plans.settings import RunSettings
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
    the framework lacked of the plans that were; UsageError where the problem's own pins ask for what it lacks.
    """
    can = framework(name).ABILITIES
    if problem.resume is not None:
        raise UsageError(
            f"a search to be kept and gone on with ({problem.resume}) was asked for, and for {name} there may be "
            "several, each with pins of its own; plan without a framework and export the plan, or leave the file out"
        )
    wrong = "; ".join(can.lacks_of(problem.settings))
    if wrong:
        raise InfeasibleError(
            Infeasible(binding=wrong, advice="plan with other settings, or export to another framework")
        )
    best: Solution | None = None
    lacking: dict[str, None] = {}
    left = [(0.0, 0, _first(problem.pins, can))]
    tried = 0
    while left and not (best and problem.spent):
        seconds, _, pins = heappop(left)
        if best is not None and seconds >= _seconds(best):
            break
        try:
            solution = with_even_rows(problem, solve_with(replace(problem, pins=pins), strategy))
        except InfeasibleError as error:
            lacking.setdefault(str(error.infeasible.binding))
            continue
        reasons = inexpressible(solution.plan, name)
        if not reasons:
            best = solution if best is None else min(best, solution, key=_seconds)
            continue
        lacking.update(dict.fromkeys(reasons))
        for narrower in _narrower(pins, can, problem.settings):
            tried += 1
            heappush(left, (_seconds(solution), tried, narrower))
    if best is None:
        raise InfeasibleError(
            Infeasible(
                binding=f"no plan was found that {name} can be told: {'; '.join(lacking)}",
                advice="export to another framework, or run the plan with `placer execute`",
            )
        )
    return best


def _seconds(solution: Solution) -> float:
    assert solution.plan.ledger is not None  # the judge put it there
    return solution.plan.ledger.step_seconds


def _first(asked: Pins, can: Abilities) -> Pins:
    """The pins that allow most. Raises UsageError where what is asked for is lacked."""
    pins = _degrees_within(asked, can)
    if can.schedules:
        return pins
    if (pins.pipeline or 1) > 1:
        raise UsageError(f"{can.framework} has no pipelines, and pipeline={pins.pipeline} is pinned")
    return replace(pins, pipeline=1, schedule=pins.schedule or PLAIN)


def _narrower(pins: Pins, can: Abilities, settings: RunSettings) -> Iterator[Pins]:
    """The pins with one choice more made, in each way the framework has; none where all are."""
    if pins.schedule is None:
        yield from (replace(pins, schedule=one) for one in sorted(can.schedules))
    elif pins.shard is None:
        yield from (replace(pins, shard=one) for one in sorted(can.shardings))
    elif pins.recompute is None and settings.recompute == "auto":
        ways: tuple[Recompute, ...] = (False, "selective", True) if can.selective else (False, True)
        yield from (replace(pins, recompute=one) for one in ways)


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
        rows=1, expert=degree("expert", asked.expert),
    )  # fmt: skip
