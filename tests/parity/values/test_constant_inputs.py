"""Inputs that are the same in every step: a run computes with them what one device does, and takes no other values."""

from __future__ import annotations

from functools import cache

import pytest

import placer
from eager_ranks import differences, given_another_constant, on_one_device, trained
from examples.parity.cases import run_case
from execute_models import CONSTANTS, described
from placer import RunSettings
from placer.plans.plan import Plan
from pool import on_ranks

pytestmark = pytest.mark.in_turns

CASES: dict[tuple[str, str], dict[str, object]] = {
    ("one_grid", "replicas"): {"data": 2, "microbatches": 2},
    ("one_grid", "ZeRO 3"): {"data": 2, "shard": "parameters"},
    ("one_grid", "stages"): {"pipeline": 2, "microbatches": 2},
    ("row_grids", "cut"): {"tensor": 2},
    ("row_grids", "stages"): {"pipeline": 2, "microbatches": 1},
    ("packed", "cut"): {"tensor": 2},
    ("packed", "stages"): {"pipeline": 2, "microbatches": 1},
}


@cache
def plan_of(made: str, layout: str) -> Plan:
    """A model over two ranks."""
    return placer.plan(
        f"execute_models:{made}", "localx2", batch=described(made), pins=CASES[made, layout],
        settings=RunSettings(precision="float64"), budget=20,
    )  # fmt: skip


@pytest.mark.parametrize(("made", "layout"), CASES, ids="-".join)
def test_a_model_that_reads_constants_trains_as_on_one_device(made: str, layout: str) -> None:
    plan = plan_of(made, layout)
    for found in on_ranks(2, trained, plan):
        assert differences(found, on_one_device(plan)) == []


@pytest.mark.parametrize(("made", "layout"), [("one_grid", "replicas"), ("packed", "stages")])
def test_a_batch_with_another_value_is_refused_on_all_ranks(made: str, layout: str) -> None:
    name, _ = CONSTANTS[made]
    for own, other in on_ranks(2, given_another_constant, plan_of(made, layout), name):
        assert own == ""
        assert other.startswith(f"input {name} is a constant of the plan, whose values forward may read")
        assert "plan again with those of this one" in other


def test_a_plan_with_constants_is_verified() -> None:
    report = on_ranks(2, run_case, plan_of("one_grid", "replicas"))[0]
    assert report.passed, str(report)


def test_a_plan_keeps_its_constants_and_one_with_too_few_numbers_is_refused() -> None:
    text = plan_of("packed", "cut").to_json()
    assert Plan.from_json(text).to_json() == text
    short = text.replace('"values": [\n     2,', '"values": [', 1)
    assert short != text
    with pytest.raises(placer.PlacerError, match="values are 7 numbers, its tensor has 8"):
        Plan.from_json(short)
