"""A plan with its verdict: the estimate of `costs` and the violations of `legality`, never a strategy's own numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from placer.costs.step_estimate import estimate
from placer.legality import Violation, check
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan

GIB = 2**30
# Broken rules that are told.
MOST_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """`plan` carries its ledger; it is legal where `violations` is empty."""

    plan: Plan
    ledger: Ledger
    violations: tuple[Violation, ...]

    @property
    def legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def seconds(self) -> float:
        """Estimated seconds of a step."""
        return self.ledger.step_seconds

    @property
    def order(self) -> tuple[float, int, int, int, str]:
        """What plans are compared by: seconds first, then the simpler one, then its own text."""
        plan = self.plan
        return self.seconds, plan.world_size, len(plan.stages), len(plan.microbatches), repr(plan.stages)

    @property
    def complaint(self) -> str:
        """The broken rules in words, a few of many."""
        found = list(dict.fromkeys(violation.message for violation in self.violations))
        more = [f"and {len(found) - MOST_WORDS} more like these"] if len(found) > MOST_WORDS else []
        return "; ".join([*found[:MOST_WORDS], *more])


def judge(plan: Plan, *, lowered: bool = True) -> Judged:
    """The verdict on `plan`; without `lowered` on all but its communication (`legality.check`)."""
    ledger = estimate(plan)
    return Judged(plan=replace(plan, ledger=ledger), ledger=ledger, violations=check(plan, lowered=lowered))
