"""What must hold before a plan runs here: the same model as when it was made, on a platform it was made for."""

from __future__ import annotations

from placer import tracer
from placer.errors import StalePlanError
from placer.plans import Plan


def require_model(plan: Plan) -> None:
    """Raise StalePlanError where the plan's reference leads to another model than it was made for."""
    if plan.model.kind == "module" or not plan.model.fingerprint:
        return
    found = tracer.fingerprint(tracer.resolve(plan.model).build("meta"))
    if found != plan.model.fingerprint:
        raise StalePlanError(
            f"the plan was made for a model with fingerprint {plan.model.fingerprint}, {plan.model.kind} "
            f"{plan.model.reference[:80]!r} now gives {found}: its code or configuration has changed; plan again"
        )


def require_runnable(plan: Plan) -> tuple[str, ...]:
    """Warnings to print before `plan` runs here. Raises StalePlanError where it must not."""
    require_model(plan)
    return ()
