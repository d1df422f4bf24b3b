"""Strategy, and the table of them: the built-in ones, and those that other packages bring by entry point."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Protocol

from placer.errors import Infeasible, UsageError
from placer.search.problem import Problem, Solution

# name -> where; third parties add theirs by an entry point of the group "placer.strategies".
BUILT_IN = {
    "single": "placer.strategies.baselines.standard:SingleDevice",
    "data": "placer.strategies.baselines.standard:DataParallel",
    "sharded": "placer.strategies.baselines.standard:ShardedDataParallel",
    "even": "placer.strategies.baselines.standard:EvenPipeline",
    "megatron": "placer.strategies.baselines.megatron:Megatron",
    "exhaustive": "placer.strategies.oracle.exhaustive:Exhaustive",
    "stages": "placer.strategies.inter_op.search:Stages",
    "auto": "placer.strategies.auto:Portfolio",
}


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
