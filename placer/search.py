"""Problem, Strategy, Solution: what every strategy is given and what it may return; the table of built-in strategies.

`solve_with` runs one and judges what it returned: the plan is checked and estimated again, so that no strategy grades
itself.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Literal, Protocol, TypeAlias

from placer.cluster import Cluster
from placer.errors import Infeasible, InfeasibleError, StrategyError, UsageError
from placer.estimates import estimate
from placer.graph import Graph
from placer.legality import check
from placer.placement.answers import PlaceAnswer
from placer.placement.formats import FileProblem, PlaceRequest
from placer.plans import Alternative, ModelRef, Plan
from placer.rules.experts import require_loads
from placer.settings import RunSettings

# What a strategy adds up in its own order may differ from the estimate by rounding.
ROUNDING = 1e-9

# What ends a search before its proof is complete; empty where nothing did.
Ended: TypeAlias = Literal["", "interrupt", "evaluations", "seconds"]

# name -> where; third parties add theirs by an entry point of the group "placer.strategies".
BUILT_IN = {
    "single": "placer.strategies.baselines:SingleDevice",
    "data": "placer.strategies.baselines:DataParallel",
    "sharded": "placer.strategies.baselines:ShardedDataParallel",
    "even": "placer.strategies.baselines:EvenPipeline",
    "megatron": "placer.strategies.megatron:Megatron",
    "exhaustive": "placer.strategies.exhaustive:Exhaustive",
    "stages": "placer.strategies.stages:Stages",
    "auto": "placer.strategies.portfolio:Portfolio",
}

# format of a placement file -> where it is solved
PLACERS = {
    "dnn-partitioning": "placer.strategies.placing:solve",
    "pipedream": "placer.strategies.placing:solve",
    "piper": "placer.strategies.placing_piper:solve",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Choices the user has fixed; None is free. bucket: in bytes."""

    data: int | None = None
    shard: str | None = None
    pipeline: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    recompute: bool | None = None
    tensor: int | None = None
    height: int | None = None
    width: int | None = None
    sequence: int | None = None
    expert: int | None = None
    bucket: int | None = None
    stage_of: tuple[tuple[str, int], ...] = ()

    @property
    def axes(self) -> tuple[tuple[str, int | None], ...]:
        """How many devices of a replica each axis is pinned to."""
        return (
            ("tensor", self.tensor), ("height", self.height), ("width", self.width), ("sequence", self.sequence),
            ("expert", self.expert),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be placed, where, under which settings and pins. `rows` is the global batch.

    budget: evaluated plans. until: when to end with the best so far, by the clock of `time.perf_counter`.
    """

    graph: Graph
    cluster: Cluster
    settings: RunSettings
    model: ModelRef
    rows: int
    pins: Pins = Pins()
    seed: int = 0
    budget: int | None = None
    until: float | None = None

    @property
    def spent(self) -> bool:
        """Whether the seconds are over."""
        return self.until is not None and time.perf_counter() >= self.until


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A legal plan with its estimate, a proven lower bound where the strategy has one, and what was looked at.

    ended: what ended the search before its proof was complete, if anything.
    """

    plan: Plan
    bound: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    evaluations: int = 0
    ended: Ended = ""


class Strategy(Protocol):
    """An optimizer. Its plan is judged by `legality.check` and `costs.estimate`, never by itself."""

    name: str
    exact: bool

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan it finds, or what binds."""
        ...


def strategy(name: str) -> Strategy:
    """The strategy called `name`. Raises UsageError listing the known ones."""
    if name in BUILT_IN:
        module, attribute = BUILT_IN[name].split(":")
        made: Strategy = getattr(importlib.import_module(module), attribute)()
        return made
    for point in entry_points(group="placer.strategies"):
        if point.name == name:
            found: Strategy = point.load()()
            return found
    raise UsageError(f"there is no strategy {name!r}; known: {', '.join(BUILT_IN)}")


class Placer(Protocol):
    """Solves the problems of one file format; its answer is judged by `placer.placement`, never by itself."""

    def __call__(self, problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
        """The best placement it finds. Raises InfeasibleError with what binds."""
        ...


def place(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The placement of a problem that came as a file. Raises InfeasibleError with what binds, UsageError for misuse."""
    if problem.format not in PLACERS:
        raise UsageError(f"no solver takes a {problem.format!r} problem; known: {', '.join(PLACERS)}")
    module, attribute = PLACERS[problem.format].split(":")
    placer: Placer = getattr(importlib.import_module(module), attribute)
    return placer(problem, request)


def solve_with(problem: Problem, name: str) -> Solution:
    """What the strategy `name` finds, judged: legal, within the pins, estimated afresh, ready to save.

    Raises InfeasibleError where nothing fits, UsageError for an unknown name or a bad problem, StrategyError where the
    strategy returned a plan for another problem, an illegal plan, a wrong estimate or a bound above its own plan.
    """
    require_sound(problem)
    found = strategy(name).solve(problem)
    if isinstance(found, Infeasible):
        raise InfeasibleError(found)
    return judged(problem, found, name)


def judged(problem: Problem, found: Solution, name: str) -> Solution:
    """`found` with its plan completed by ledger, bound and runners-up; raises StrategyError for a false claim."""
    plan, ledger = found.plan, estimate(found.plan)
    complaints = [*_foreign(plan, problem), *broken_pins(plan, problem.pins), *(v.message for v in check(plan))]
    claimed = ledger.step_seconds if plan.ledger is None else plan.ledger.step_seconds
    if abs(claimed - ledger.step_seconds) > ROUNDING * ledger.step_seconds:
        complaints.append(f"it claims {claimed!r} s a step, the estimate is {ledger.step_seconds!r} s")
    if found.bound is not None and found.bound > ledger.step_seconds * (1 + ROUNDING):
        complaints.append(f"its bound of {found.bound!r} s is above the {ledger.step_seconds!r} s of its plan")
    if complaints:
        raise StrategyError(f"the strategy {name!r} returned a plan that does not hold: {'; '.join(complaints)}")
    complete = replace(
        plan, strategy=plan.strategy or name, seed=problem.seed, ledger=ledger, bound=found.bound,
        alternatives=found.alternatives,
    )  # fmt: skip
    return replace(found, plan=complete)


def require_sound(problem: Problem) -> None:
    """Raise UsageError for a problem without blocks, rows, devices or evaluations, or with loads of other experts."""
    require_loads(problem.graph, problem.settings.expert_loads)
    for what, count in (
        ("blocks to place", len(problem.graph.blocks)),
        ("rows in the batch", problem.rows),
        ("devices in the cluster", problem.cluster.size),
        ("evaluations in the budget", 1 if problem.budget is None else problem.budget),
    ):
        if count < 1:
            raise UsageError(f"a plan was asked for with {count} {what}; give at least 1")


def broken_pins(plan: Plan, pins: Pins) -> tuple[str, ...]:
    """Each pin that `plan` does not honour, in words."""
    wanted: tuple[tuple[str, object, set[object]], ...] = (
        ("data", pins.data, {stage.replicas for stage in plan.stages}),
        ("shard", pins.shard, {stage.sharding for stage in plan.stages}),
        ("pipeline", pins.pipeline, {plan.positions}),
        ("microbatches", pins.microbatches, {len(plan.microbatches)}),
        ("schedule", pins.schedule, {plan.schedule}),
        ("recompute", pins.recompute, {stage.recompute for stage in plan.stages}),
        ("bucket", pins.bucket, {plan.bucket_bytes}),
    )
    broken = [f"pin {name}={pin} is not honoured" for name, pin, found in wanted if pin is not None and found != {pin}]
    for axis, degree in pins.axes:
        if degree is not None and _degrees(plan, axis) != {degree}:
            broken.append(f"pin {axis}={degree} is not honoured")
    index = {block.name: i for i, block in enumerate(plan.graph.blocks)} if pins.stage_of else {}
    for name, stage in pins.stage_of:
        held = stage < len(plan.stages) and plan.stages[stage].first <= index[name] < plan.stages[stage].last
        if not held:
            broken.append(f"pin {name}@stage={stage} is not honoured")
    return tuple(broken)


def _degrees(plan: Plan, axis: str) -> set[int]:
    """The devices of a replica along an axis, of every stage."""
    layouts = [None if stage.layout is None else plan.layouts[stage.layout] for stage in plan.stages]
    return {1 if layout is None else dict(layout.axes).get(axis, 1) for layout in layouts}


def _foreign(plan: Plan, problem: Problem) -> list[str]:
    """What of the plan's inputs is not the problem's."""
    pairs = {
        "model": (plan.model, problem.model),
        "graph": (plan.graph, problem.graph),
        "cluster": (plan.cluster, problem.cluster),
        "settings": (plan.settings, problem.settings),
        "rows": (plan.rows, problem.rows),
    }
    return [
        f"its {what} is not the problem's"
        for what, (mine, given) in pairs.items()
        if mine is not given and mine != given
    ]
