"""Weights that no gradient reaches: as on one device they have none, and the optimizer leaves them as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eager_ranks import differences, on_one_device, trained
from examples.parity.cases import Case, plan_of
from pool import on_ranks
from writing_models import BATCH

CASES = [
    replace(case, **layout)
    for case in (Case(model=f"writing_models:{name}", shapes=BATCH) for name in ("unreached", "severed", "borrowing"))
    for layout in (
        {"replicas": 2},
        {"replicas": 2, "sharding": "optimizer"},
        {"replicas": 2, "sharding": "gradients"},
        {"replicas": 2, "sharding": "parameters", "recompute": True},
        {"positions": 2, "recompute": True},
        {"positions": 2, "schedule": "zero-bubble"},
        {"positions": 2, "replicas": 2, "sharding": "optimizer"},
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_no_gradient_reaches_stays_as_on_one_device(case: Case) -> None:
    plan = plan_of(case)
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []
