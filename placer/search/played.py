"""Seconds of a plan played event by event: what the closed form, which searches compare, is held to before one is told.

Where messages wait for each other, or the stages of a position differ turn by turn, the closed form is too hopeful. A
step that is played within `APART` of it counts as predicted, any other as played.
"""

from __future__ import annotations

from placer.costs.step_estimate import estimate_with, with_reductions
from placer.io.memo import once
from placer.plans.plan import Plan
from placer.search.problem import Problem
from placer.simulator import column_classes, simulate

# What the closed form may be apart from the step played event by event.
APART = 0.02
# Passes of devices over microbatches beyond which a plan is not played: it would take longer than the search (about
# 0.1 ms each); where the seconds of a budget are over, those of a moment.
MOST_PASSES, LATE_PASSES = 50_000, 5_000


def step_seconds(problem: Problem, plan: Plan) -> float:
    """Seconds of a step of a legal plan: as predicted, or as played where that is further apart than `APART`."""
    predicted, found = estimate_with(problem.costs, plan).step_seconds, _played(problem, plan)
    return predicted if found is None or abs(found - predicted) <= APART * predicted else found


def _played(problem: Problem, plan: Plan) -> float | None:
    """Seconds of a step as played; None where that would take too long."""
    key = plan.stages, plan.schedule, plan.microbatches, plan.layouts, plan.bucket_bytes
    if key not in problem.known_steps:
        columns = len(column_classes(plan)) * sum(stage.degree for stage in plan.stages)
        if columns * len(plan.microbatches) > (LATE_PASSES if problem.spent else MOST_PASSES):
            return None
    return once(problem.known_steps, key, _simulated, with_reductions(problem.costs, plan))


def _simulated(plan: Plan) -> float:
    return simulate(plan).ledger.step_seconds


def apart(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """In words, where a step of `plan` takes longer or shorter than its ledger predicts, or was not played."""
    assert plan.ledger is not None
    predicted, found = plan.ledger.step_seconds, _played(problem, plan)
    if found is None:
        return ("the step was not played event by event, which takes long; placer simulate does it",)
    if abs(found - predicted) <= APART * predicted:
        return ()
    much = f"{abs(found / predicted - 1):.1%} {'longer' if found > predicted else 'shorter'} than predicted"
    return (f"played event by event, as placer simulate does, a step takes {1e3 * found:.3g} ms, {much}",)
