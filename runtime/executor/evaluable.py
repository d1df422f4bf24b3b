"""Whether a run can give the loss of its model in evaluation, of which it has the graph of training."""

from __future__ import annotations

from placer.errors import UsageError
from placer.plans.plan import Plan


def require_evaluable(plan: Plan) -> None:
    """Raises UsageError where the model computes otherwise in evaluation than the graph that the plan runs."""
    if plan.graph.evaluation:
        raise UsageError(
            f"an evaluation was asked for of {plan.graph.name}, which a run trains and cannot evaluate: "
            f"{plan.graph.evaluation}. Leave it out (--eval-every 0) and evaluate the saved "
            "weights with the model itself"
        )
