"""Paths that drop in training pass on in evaluation what they would drop, as the model itself does there."""

from __future__ import annotations

import pytest
import torch

from eager_ranks import evaluated, refused_and_verified, trained, undrawn
from examples.parity.cases import Case, plan_of
from examples.parity.evaluated import BATCH
from placer import legality, tracer
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROOM = "examples.parity.dropped_paths"
LEFT_OUT = ("multiplied", "divided", "unscaled", "noised", "connected", "sampled_and_dropped", "written_after")
WHOLE = ("blocks_dropped",)
OTHERS = ("weaker", "told_otherwise", "read_again")


def case(model: str, **layout: object) -> Case:
    """A model of the room under a layout."""
    return Case(model=f"{ROOM}:{model}", shapes=BATCH, **{"microbatches": (8,), **layout})  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [*LEFT_OUT, *WHOLE])
def test_a_model_that_drops_paths_in_training_only_is_evaluated(model: str) -> None:
    graph = tracer.capture(f"{ROOM}:{model}", batch=dict(BATCH))
    assert graph.evaluation == ""
    assert not any("does not evaluate it" in note for note in graph.notes)


@pytest.mark.parametrize("model", OTHERS)
def test_one_that_computes_otherwise_in_evaluation_is_told_of(model: str) -> None:
    graph = tracer.capture(f"{ROOM}:{model}", batch=dict(BATCH))
    assert "in training the model computes aten::" in graph.evaluation


def test_what_drops_in_both_modes_is_no_difference() -> None:
    assert tracer.capture(f"{ROOM}:kept_on", batch=dict(BATCH)).evaluation == ""


CASES = [
    case("multiplied", microbatches=(4, 4), replicas=2),
    case("multiplied", axis="tensor", degree=2, recompute=True),
    case("multiplied", positions=2),
    case("divided", microbatches=(4, 4), replicas=2),
    case("divided", axis="tensor", degree=2),
    case("divided", positions=2, recompute=True),
    case("unscaled", microbatches=(3, 3, 2), replicas=2),
    case("noised", axis="tensor", degree=2),
    case("connected", axis="tensor", degree=2),
    case("connected", microbatches=(4, 4), replicas=2),
    case("blocks_dropped", positions=2),
    case("written_after", microbatches=(4, 4), replicas=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_steps_and_its_evaluation_are_those_of_one_device(case: Case) -> None:
    plan = plan_of(case)
    legality.require(plan)
    for _, report in on_ranks(plan.world_size, refused_and_verified, plan):
        assert report.passed
        assert {entry.quantity for entry in report.comparisons} >= {"loss", "gradients", "parameters", "evaluation"}
    for found in on_ranks(plan.world_size, trained, plan):
        assert found.evaluated == pytest.approx(evaluated(plan, found.state), abs=1e-9)


def test_an_evaluation_draws_nothing() -> None:
    plan = plan_of(case("divided", microbatches=(4, 4), replicas=2))
    for before, after in on_ranks(plan.world_size, undrawn, plan):
        assert torch.equal(before, after)
