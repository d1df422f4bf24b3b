"""The order in which each position of a plan does its actions."""

from __future__ import annotations

from placer.plans.branched import branched_actions
from placer.plans.plan import Plan
from placer.plans.schedule import BRANCHED, Actions, actions
from placer.plans.transfers import stage_graph


def plan_actions(plan: Plan) -> Actions:
    """The plan's schedule: the actions of each position."""
    if plan.schedule in BRANCHED:
        return branched_actions(stage_graph(plan), len(plan.microbatches))
    return actions(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))
