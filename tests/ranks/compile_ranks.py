"""What ranks run for the tests of compiled plans, found by import."""

from __future__ import annotations

from torch._dynamo.utils import counters

from examples.parity.cases import capture_of
from placer.plans.plan import Plan
from placer.runtime import VerifyReport, verify


def told(*plans: Plan) -> None:
    """Nothing: the models of plans are captured before ranks are started (`ranks.on_ranks`)."""


def equal(plan: Plan) -> tuple[VerifyReport, int]:
    """Verify a plan whose blocks are compiled; how many graphs were."""
    counters.clear()
    return verify(plan, 2, capture=capture_of(plan), compile="aot_eager"), counters["stats"]["unique_graphs"]
