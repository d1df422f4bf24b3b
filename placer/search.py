"""Problem, Strategy, Solution: what every strategy is given and what it may return; the table of built-in strategies."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from placer.cluster import Cluster
from placer.errors import Infeasible, UsageError
from placer.graph import Graph
from placer.plans import Alternative, ModelRef, Plan
from placer.settings import RunSettings

# name -> where; third parties add theirs by an entry point of the group "placer.strategies".
BUILT_IN = {
    "single": "placer.strategies.baselines:SingleDevice",
    "data": "placer.strategies.baselines:DataParallel",
    "sharded": "placer.strategies.baselines:ShardedDataParallel",
    "even": "placer.strategies.baselines:EvenPipeline",
    "exhaustive": "placer.strategies.exhaustive:Exhaustive",
    "stages": "placer.strategies.stages:Stages",
    "auto": "placer.strategies.portfolio:Portfolio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Choices the user has fixed; None is free."""

    data: int | None = None
    shard: str | None = None
    pipeline: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    recompute: bool | None = None
    stage_of: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is to be placed, where, under which settings and pins. `rows` is the global batch."""

    graph: Graph
    cluster: Cluster
    settings: RunSettings
    model: ModelRef
    rows: int
    pins: Pins = Pins()
    seed: int = 0
    budget: int | None = None


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A legal plan with its estimate, a proven lower bound where the strategy has one, and what was looked at."""

    plan: Plan
    bound: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    evaluations: int = 0


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
