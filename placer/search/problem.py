"""Problem, Pins, Solution: what every strategy is given, and what it may return; the table of strategies."""

from __future__ import annotations

import importlib
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from placer.cluster.cluster import Cluster
from placer.costs.costs import Costs
from placer.errors import Infeasible, UsageError
from placer.graph import Graph
from placer.plans.plan import Alternative, Layout, ModelRef, Plan, Recompute, Reduction
from placer.plans.settings import RunSettings
from placer.program.buckets import mixed_types
from placer.rules.rows import whole_batch_reason
from placer.search.progress import Progress

# What ends a search before its proof is complete; empty where nothing did.
Ended: TypeAlias = Literal["", "interrupt", "evaluations", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Choices the user has fixed; None is free. bucket: in bytes. reduction: of replicas that have this way."""

    data: int | None = None
    shard: str | None = None
    pipeline: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    recompute: Recompute | None = None
    tensor: int | None = None
    height: int | None = None
    width: int | None = None
    sequence: int | None = None
    rows: int | None = None
    expert: int | None = None
    bucket: int | None = None
    reduction: Reduction | None = None
    stage_of: tuple[tuple[str, int], ...] = ()

    @property
    def axes(self) -> tuple[tuple[str, int | None], ...]:
        """How many devices of a replica each axis is pinned to."""
        return (
            ("tensor", self.tensor), ("height", self.height), ("width", self.width), ("sequence", self.sequence),
            ("rows", self.rows), ("expert", self.expert),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be placed, where, under which settings and pins. `rows` is the global batch.

    budget: evaluated plans. until: when to end with the best so far, by the clock of `time.perf_counter`. progress:
    who listens to what searches find. known_plans: legal plans of it, which searches by moves begin with.
    known_layouts: what `strategies.intra_op` made, for problems made of this one. known_steps: seconds of plans that
    were played event by event. islands: populations of a search that
    may have several (None: as it does by itself). resume: the file that such a search is kept in, and goes on from.
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
    islands: int | None = None
    resume: Path | None = None
    progress: Progress | None = field(default=None, compare=False, repr=False)
    known_plans: tuple[Plan, ...] = field(default=(), compare=False, repr=False)
    known_layouts: dict[Hashable, tuple[Graph, tuple[Layout, ...]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    known_steps: dict[Hashable, float] = field(default_factory=dict, init=False, compare=False, repr=False)

    def found(self, step_seconds: float) -> None:
        """Tell who listens that a legal plan of so many seconds a step is known."""
        if self.progress is not None:
            self.progress.found(step_seconds)

    @cached_property
    def costs(self) -> Costs:
        """What its plans are priced by; gradients summed as is pinned or cheapest, which the judge then writes down."""
        return Costs(self.graph, self.cluster, self.settings, searched=self.pins.reduction or "cheapest")

    @cached_property
    def whole_batch(self) -> str:
        """Why the batch may not be divided into replicas or microbatches; empty where it may."""
        return whole_batch_reason(self.graph, statistics=self.settings.batch_norm == "microbatch")

    @cached_property
    def mixed_types(self) -> str:
        """What FSDP2 would have to shard together and cannot, so that it shards nothing; empty where there is none."""
        return mixed_types(self.graph, self.settings)

    @property
    def spent(self) -> bool:
        """Whether the seconds are over."""
        return self.until is not None and time.perf_counter() >= self.until


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A legal plan with its estimate, a proven lower bound where the strategy has one, and what was looked at.

    left_out: the kinds of plans that the bound says nothing of, in words.
    ended: what ended the search before its proof was complete, if anything.
    """

    plan: Plan
    bound: float | None = None
    left_out: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    evaluations: int = 0
    ended: Ended = ""


# name -> where; third parties add theirs by an entry point of the group "placer.strategies".
BUILT_IN = {
    "single": "placer.strategies.baselines.standard:SingleDevice",
    "data": "placer.strategies.baselines.standard:DataParallel",
    "sharded": "placer.strategies.baselines.standard:ShardedDataParallel",
    "even": "placer.strategies.baselines.standard:EvenPipeline",
    "megatron": "placer.strategies.baselines.megatron:Megatron",
    "exhaustive": "placer.strategies.oracle.exhaustive:Exhaustive",
    "stages": "placer.strategies.inter_op.search:Stages",
    "genetic": "placer.strategies.genetic.search:Genetic",
    "local": "placer.strategies.local.search:LocalSearch",
    "min_cut": "placer.strategies.local.polished:PolishedCuts",
    "heft": "placer.strategies.lists.strategies:Heft",
    "etf": "placer.strategies.lists.strategies:EarliestTask",
    "sct": "placer.strategies.lists.strategies:SmallCommunication",
    "critical_path": "placer.strategies.lists.strategies:CriticalPath",
    "greedy": "placer.strategies.lists.strategies:Greedy",
    "metis": "placer.strategies.lists.strategies:Metis",
    "lists": "placer.strategies.lists.strategies:Lists",
    "horizontal": "placer.strategies.horizontal.search:Horizontal",
    "policy": "placer.strategies.local.polished:PolishedPolicy",
    "auto": "placer.strategies.auto.portfolio:Portfolio",
}

# Strategies of several populations, whose search can be kept and gone on with.
OF_ISLANDS = ("genetic",)


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
