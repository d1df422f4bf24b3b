"""What a model computes otherwise in evaluation than in training a plan computes so too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eager_ranks import differences, evaluated, on_one_device, trained
from examples.parity.cases import Case, plan_of
from examples.parity.evaluated import BATCH
from placer import legality, tracer
from pool import on_ranks

NORMED = Case(model="examples.parity.evaluated:instance_norm", shapes=BATCH, microbatches=(8,))
AFFINE = replace(NORMED, model="examples.parity.evaluated:affine_instance_norm")
CASES = [
    NORMED,
    replace(NORMED, positions=2, recompute=True),
    replace(NORMED, recompute=True),
    AFFINE,
    replace(AFFINE, positions=2, recompute=True),
    replace(AFFINE, axis="tensor", degree=2),
    replace(NORMED, axis="tensor", degree=2, recompute=True),
    replace(AFFINE, model="examples.parity.evaluated:untracked_instance_norm", microbatches=(3, 3, 2), replicas=2),
    replace(NORMED, model="examples.parity.evaluated:cumulative_batch_norm", positions=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_norms_train_and_evaluate_as_on_one_device(case: Case) -> None:
    plan = plan_of(case)
    legality.require(plan)
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


DRAWING = ("feature_dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu", "lstm", "gru", "rnn")


@pytest.mark.parametrize("model", DRAWING)
def test_what_draws_in_training_draws_nothing_in_evaluation(model: str) -> None:
    plan = plan_of(Case(model=f"examples.parity.evaluated:{model}", shapes=BATCH, microbatches=(8,), positions=2))
    for found in on_ranks(plan.world_size, trained, plan):
        assert found.evaluated == pytest.approx(evaluated(plan, found.state), abs=1e-9)


@pytest.mark.parametrize(("model", "said"), [("noisy", True), ("softened", False), ("lstm", False)])
def test_a_model_that_computes_otherwise_in_evaluation_is_told_of_as_it_is_planned(model: str, said: bool) -> None:
    notes = tracer.capture(f"examples.parity.evaluated:{model}", batch=dict(BATCH)).notes
    told = [
        note for note in notes if "is not what model.eval() gives: in training the model computes aten::mul" in note
    ]
    assert bool(told) == said
