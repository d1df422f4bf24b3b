"""The order in which each position of a plan does its actions."""

from __future__ import annotations

from functools import lru_cache

from placer.plans.branched import branched_order
from placer.plans.plan import Plan
from placer.plans.schedule import BRANCHED, Actions, TimedActions, actions, timetable
from placer.plans.stage_graph import StageGraph
from placer.plans.transfers import read_graph


def plan_actions(plan: Plan) -> Actions:
    """The plan's schedule: the actions of each position."""
    if plan.schedule in BRANCHED:
        return branched_order(read_graph(plan), len(plan.microbatches)).actions
    return _chained(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))


def timed_actions(plan: Plan, graph: StageGraph) -> TimedActions:
    """The same with the times that they have where its stages wait for each other as `graph` says."""
    if plan.schedule in BRANCHED:
        return branched_order(graph, len(plan.microbatches))
    return _timed(plan_actions(plan), graph)


@lru_cache(maxsize=64)
def _chained(schedule: str, positions: int, stages: int, microbatches: int) -> Actions:
    return actions(schedule, positions, stages, microbatches)


@lru_cache(maxsize=64)
def _timed(order: Actions, graph: StageGraph) -> TimedActions:
    return TimedActions(actions=order, times=timetable(order, graph))
