"""What a model computes otherwise in evaluation than in training a plan computes so too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eager_ranks import differences, evaluated, on_one_device, refused_and_verified, trained
from examples.parity.cases import Case, plan_of
from examples.parity.evaluated import BATCH
from placer import legality, tracer
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.training.execute import execute
from placer.runtime.training.run_report import ExecuteOptions
from pool import on_ranks

pytestmark = pytest.mark.in_turns

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
    replace(NORMED, model="examples.parity.evaluated:frozen", positions=2),
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


OTHERS = {
    "noisy": "in training the model computes aten::mul at ",
    "graded": "in training the model computes aten::mul at ",
    "kept_dropping": ", in evaluation aten::dropout at ",
    "kept_attending": ", in evaluation aten::scaled_dot_product_attention at ",
    "kept_normalising": ", in evaluation aten::batch_norm at ",
    "other_constants": "tensors of other numbers in evaluation",
    "padded": "a TransformerEncoder that leaves padding out",
    "scaled": "train(False) changes model.middle.factor",
    "unevaluable": "the model cannot be captured in evaluation (",
    "tracked": "the model cannot be captured in evaluation (",
}
ALIKE = ("softened", *DRAWING, "affine_instance_norm", "untracked_instance_norm", "cumulative_batch_norm")


@pytest.mark.parametrize(("model", "why"), OTHERS.items())
def test_a_model_that_computes_otherwise_in_evaluation_is_told_of_as_it_is_planned(model: str, why: str) -> None:
    graph = tracer.capture(f"examples.parity.evaluated:{model}", batch=dict(BATCH))
    assert why in graph.evaluation
    assert any("does not evaluate it" in note and graph.evaluation in note for note in graph.notes)


@pytest.mark.parametrize("model", ALIKE)
def test_nothing_is_told_of_models_that_only_leave_training_out(model: str) -> None:
    graph = tracer.capture(f"examples.parity.evaluated:{model}", batch=dict(BATCH))
    assert graph.evaluation == ""
    assert not any("does not evaluate it" in note for note in graph.notes)


def test_a_model_that_cannot_be_evaluated_is_trained_as_on_one_device() -> None:
    plan = plan_of(replace(NORMED, model="examples.parity.evaluated:tracked", axis="tensor", degree=2))
    for _, report in on_ranks(plan.world_size, refused_and_verified, plan):
        assert report.passed


def test_such_a_model_is_trained_exactly_and_its_evaluation_refused() -> None:
    plan = plan_of(replace(NORMED, model="examples.parity.evaluated:noisy", microbatches=(4, 4), replicas=2))
    assert Plan.from_json(plan.to_json()).graph.evaluation == plan.graph.evaluation != ""
    with pytest.raises(UsageError, match=r"an evaluation was asked for of Between.*aten::mul at "):
        execute(plan, ExecuteOptions(steps=1, eval_every=1))
    for said, report in on_ranks(plan.world_size, refused_and_verified, plan):
        assert "in training the model computes aten::mul at " in said
        assert report.passed
        assert {entry.quantity for entry in report.comparisons} >= {"loss", "gradients", "parameters"}
        assert all(entry.quantity != "evaluation" for entry in report.comparisons)
        assert any(note.startswith("the loss in evaluation was not compared") for note in report.notes)
        assert not any("evaluation" in line for line in report.compared)
