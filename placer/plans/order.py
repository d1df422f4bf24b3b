"""The order in which each position of a plan does its actions."""

from __future__ import annotations

from functools import lru_cache

from placer.plans.branched import branched_actions
from placer.plans.plan import Plan
from placer.plans.schedule import BRANCHED, Actions, actions
from placer.plans.transfers import stage_graph


def plan_actions(plan: Plan) -> Actions:
    """The plan's schedule: the actions of each position."""
    if plan.schedule in BRANCHED:
        return branched_actions(stage_graph(plan), len(plan.microbatches))
    return _chained(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))


@lru_cache(maxsize=64)
def _chained(schedule: str, positions: int, stages: int, microbatches: int) -> Actions:
    return actions(schedule, positions, stages, microbatches)
