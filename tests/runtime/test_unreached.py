"""Weights that no gradient reaches: as on one device they have none, and the optimizer leaves them as they are. And
those that one reaches which is easily spoiled: made of values that a rank without rows makes up, shared, or read as
views that outlive the block that made them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eager_ranks import (
    asked_after_a_failure,
    asked_for_one_rate,
    batches,
    differences,
    given_more_than_inputs,
    given_own_batches,
    given_own_weights,
    given_unlike_shapes,
    group_after_close,
    loaded_again,
    on_one_device,
    reached,
    reached_on_one_device,
    trained,
)
from examples.parity.cases import Case, plan_of
from examples.parity.splits import fast_links, searched, widened
from execute_models import DELICATE
from placer.plans.plan import Sharding
from placer.spmd.parameter_layouts import parameter_states
from pool import on_ranks
from weight_ranks import given_back
from writing_models import BATCH

pytestmark = pytest.mark.in_turns

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


@pytest.mark.parametrize("model", ["unreached", "severed", "borrowing"])
def test_what_no_gradient_reaches_has_none_after_a_sum_either(model: str) -> None:
    plan = plan_of(Case(model=f"writing_models:{model}", shapes=BATCH, positions=2, replicas=2))
    given = list(batches(plan))
    assert on_ranks(4, reached, plan, given)[0][0] == reached_on_one_device(plan, given)[0]


ROOTED = Case(model="execute_models:rooted", shapes=DELICATE, positions=2, replicas=2, microbatches=(4, 3, 1))
ADDED = Case(model="execute_models:added", shapes=DELICATE, positions=2, schedule="zero-bubble", microbatches=(8,))
GATED = Case(
    model="execute_models:Gated", shapes=DELICATE, replicas=2, sharding="parameters", microbatches=(4, 3, 1)
)  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        replace(ROOTED, sharding="gradients"),
        replace(ROOTED, sharding="parameters"),
        replace(ROOTED, recompute=True),
        ADDED,
        GATED,
        replace(GATED, recompute=True),
    ],
    ids=str,
)
def test_no_weight_gets_what_belongs_to_nobody(case: Case) -> None:
    plan = plan_of(case)
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_weights_that_are_loaded_after_an_evaluation_are_those_that_train(sharding: Sharding) -> None:
    plan = plan_of(replace(CASES[0], model="execute_models:added", shapes=DELICATE, sharding=sharding))
    for plain, evaluated in on_ranks(2, loaded_again, plan):
        assert all(torch.equal(plain[name], evaluated[name]) for name in plain)


def test_a_state_is_loaded_into_weights_that_a_layout_would_cut_and_no_block_runs() -> None:
    case = Case(model="execute_models:TwoWays", shapes=BATCH)
    whole = plan_of(case)
    layout = searched(whole.graph, whole.model, 8, "tensor", 2)[0]
    plan = widened(whole, layout, fast_links(2))
    assert any("layers.2.b" in name for name in parameter_states(plan))
    assert on_ranks(2, given_back, plan) == [()] * 2


def test_closing_an_executor_leaves_a_group_alone_that_somebody_else_made() -> None:
    assert all(on_ranks(2, group_after_close, plan_of(CASES[0])))


def test_ranks_that_are_given_batches_of_their_own_are_told() -> None:
    for told in on_ranks(2, given_own_batches, plan_of(CASES[0])):
        assert "rank 1 was given another batch than rank 0" in told and "same global batch" in told


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("choices", [{"replicas": 2}, {"replicas": 2, "sharding": "optimizer"}], ids=str)
def test_replicas_that_would_begin_with_unlike_weights_are_told(choices: dict[str, Any], permuted: bool) -> None:
    for told in on_ranks(2, given_own_weights, plan_of(replace(CASES[0], **choices)), permuted):
        assert "rank 1 begins with other weights than rank 0" in told


def test_all_ranks_are_told_where_one_alone_is_given_another_shape() -> None:
    for told in on_ranks(2, given_unlike_shapes, plan_of(CASES[0])):
        assert "rank 1 was given another batch than rank 0" in told


def test_what_a_batch_holds_beside_the_inputs_may_differ() -> None:
    for plain, other in on_ranks(2, given_more_than_inputs, plan_of(CASES[0])):
        assert plain == other


def test_a_step_after_one_that_failed_is_refused() -> None:
    assert "failed on its way" in on_ranks(2, asked_after_a_failure, plan_of(CASES[0]))[0]


def test_one_rate_for_groups_that_lie_on_other_ranks_is_refused_on_all() -> None:
    for told in on_ranks(2, asked_for_one_rate, plan_of(replace(CASES[0], replicas=1, positions=2))):
        assert "learning rates 0.1, 1.1" in told
