"""Plans on gloo ranks equal eager torch on one device: a representative part of `python -m examples.parity.matrix`."""

from __future__ import annotations

from dataclasses import replace

import pytest

import verify_ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from placer.plans.settings import Precision
from placer.program.buckets import shared_parameters
from placer.runtime import verify
from pool import on_ranks

pytestmark = pytest.mark.in_turns

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = Case(model="examples.parity.models:dropping_words", shapes=parity_models.TEXT)
BRIDGED = Case(model="examples.parity.models:bridged_words", shapes=parity_models.TEXT)
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES)
DIRECTIONS = Case(model="examples.parity.models:directions", shapes=parity_models.TEXT)
TEMPERED = Case(model="examples.parity.models:tempered", shapes=parity_models.TEXT)
GPT2 = Case(model="examples.models:tiny_gpt2")

TWO_RANKS = [
    replace(WORDS, replicas=2),
    replace(WORDS, replicas=2, schedule="gpipe"),
    replace(WORDS, replicas=2, sharding="gradients"),
    replace(WORDS, replicas=2, sharding="optimizer"),
    replace(WORDS, replicas=2, sharding="parameters", recompute=True),
    replace(WORDS, replicas=2, shares=(3, 1), microbatches=(4, 4)),
    replace(WORDS, replicas=2, microbatches=(5, 3)),
    replace(WORDS, replicas=2, sharding="parameters", microbatches=(5, 3)),
    # A last microbatch of one row: the other replica has none of it.
    replace(WORDS, replicas=2, microbatches=(4, 3, 1)),
    replace(DROPPING, replicas=2, microbatches=(4, 3, 1)),
    replace(WORDS, replicas=2, shares=(1, 3), microbatches=(4, 3, 1), sharding="gradients"),
    replace(IMAGES, replicas=2, microbatches=(4, 3, 1), sharding="parameters", recompute=True),
    replace(IMAGES, replicas=2, shares=(1, 3), microbatches=(4, 3, 1)),
    replace(WORDS, replicas=2, schedule="zero-bubble"),
    replace(WORDS, replicas=2, schedule="zero-bubble", sharding="optimizer", microbatches=(4, 3, 1), recompute=True),
    replace(WORDS, positions=2, schedule="gpipe"),
    replace(WORDS, positions=2, schedule="1f1b", optimizer="sgd"),
    replace(WORDS, positions=2, schedule="interleaved", turns=2),
    replace(WORDS, positions=2, schedule="zero-bubble"),
    replace(WORDS, positions=2, schedule="zero-bubble", recompute=True),
    replace(WORDS, positions=2, precision="float32"),
    replace(WORDS, positions=2, precision="bfloat16-autocast"),
    replace(WORDS, positions=2, schedule="zero-bubble", recompute=True, precision="bfloat16-autocast"),
    replace(WORDS, positions=2, precision="bfloat16"),
    replace(DROPPING, replicas=2),
    replace(DROPPING, positions=2, recompute=True),
    replace(IMAGES, replicas=2),
    replace(IMAGES, positions=2, recompute=True),
    replace(IMAGES, replicas=2, sharding="parameters", recompute=True),
    replace(TEMPERED, replicas=2, sharding="parameters"),
]
FOUR_RANKS = [
    replace(WORDS, positions=2, replicas=2),
    replace(WORDS, positions=2, replicas=2, schedule="zero-bubble"),
    replace(WORDS, positions=2, replicas=2, sharding="parameters"),
    replace(WORDS, positions=2, replicas=2, schedule="zero-bubble", sharding="optimizer"),
    replace(WORDS, positions=2, replicas=2, schedule="interleaved", turns=2, sharding="gradients"),
    replace(WORDS, positions=2, replicas=2, microbatches=(5, 3)),
    replace(WORDS, positions=2, replicas=2, microbatches=(4, 3, 1)),
    replace(WORDS, positions=2, replicas=2, microbatches=(1, 6, 1), schedule="gpipe"),
    replace(WORDS, positions=2, replicas=2, microbatches=(4, 3, 1), schedule="zero-bubble"),
    replace(WORDS, positions=2, replicas=2, microbatches=(4, 3, 1), schedule="interleaved", turns=2),
    replace(DIRECTIONS, positions=2, replicas=2, microbatches=(4, 3, 1), sharding="parameters"),
    replace(IMAGES, positions=2, replicas=2),
    replace(IMAGES, positions=2, replicas=2, microbatches=(4, 3, 1)),
    replace(WORDS, positions=4),
    replace(TEMPERED, positions=2, replicas=2, sharding="gradients"),
    replace(GPT2, positions=2, replicas=2),
]


@pytest.mark.parametrize("case", [*TWO_RANKS, *FOUR_RANKS], ids=str)
def test_the_plan_equals_the_reference_run(case: Case) -> None:
    reports = on_ranks(case.ranks, verify_ranks.one, plan_of(case))
    report = reports[0]
    assert report.passed, str(report)
    assert {c.quantity for c in report.comparisons} >= {"loss", "gradients", "parameters", "evaluation"}
    assert all(other == reports[0] for other in reports)


@pytest.mark.parametrize(
    "case",
    [
        replace(WORDS, replicas=2, sharding="optimizer"),
        replace(WORDS, positions=2, replicas=2, sharding="parameters", precision="bfloat16"),
    ],
    ids=str,
)
def test_state_on_the_host_equals_the_reference_run(case: Case) -> None:
    report = on_ranks(case.ranks, verify_ranks.on_host, plan_of(case))[0]
    assert report.passed, str(report)


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_ranks_that_shard_one_of_their_stages_and_hold_another_whole_equal_the_reference_run(
    precision: Precision,
) -> None:
    # The last microbatch leaves a replica without rows, and the last stage reads what the second one on its rank made.
    case = replace(BRIDGED, microbatches=(4, 3, 1), precision=precision)
    alike = plan_of(replace(case, positions=2, replicas=2, schedule="interleaved", turns=2))
    stages = (replace(stage, sharding=("none", "gradients")[index // 2]) for index, stage in enumerate(alike.stages))
    report = on_ranks(4, verify_ranks.one, replace(alike, stages=tuple(stages)))[0]
    assert report.passed, str(report)


def test_float64_without_casts_is_held_to_1e_9() -> None:
    report = on_ranks(1, verify_ranks.one, plan_of(WORDS))[0]
    assert report.tolerance == 1e-9
    assert report.passed, str(report)


def test_a_model_that_casts_is_held_to_1e_6_and_the_report_says_where() -> None:
    report = on_ranks(1, verify_ranks.one, plan_of(GPT2))[0]
    assert report.tolerance == 1e-6
    assert any("casts to float32" in note for note in report.notes)


def test_batch_norm_is_said_to_be_per_microbatch_and_replica() -> None:
    report = on_ranks(1, verify_ranks.one, plan_of(IMAGES))[0]
    assert report.passed, str(report)
    assert any("batch norm" in note for note in report.notes)


def test_a_reduction_that_is_forgotten_is_caught() -> None:
    report = on_ranks(4, verify_ranks.with_lost_reduction, plan_of(replace(WORDS, positions=2, replicas=2)))[0]
    assert not report.passed
    assert {c.quantity for c in report.comparisons if c.relative > report.tolerance} >= {"gradients"}


def test_a_wrong_update_is_caught_though_gradients_are_right() -> None:
    report = on_ranks(2, verify_ranks.with_wrong_update, plan_of(replace(WORDS, positions=2)))[0]
    wrong = {c.quantity for c in report.comparisons if c.relative > report.tolerance}
    assert "parameters" in wrong
    assert "gradients" not in wrong


@pytest.mark.parametrize(
    "case", [replace(WORDS, positions=2), replace(IMAGES, replicas=2, sharding="parameters")], ids=str
)
def test_a_loaded_state_gives_the_same_loss(case: Case) -> None:
    for before, after in on_ranks(2, verify_ranks.trained_and_loaded, plan_of(case)):
        assert before == pytest.approx(after, rel=1e-12)


def test_dropout_gives_the_same_losses_in_every_layout() -> None:
    one = on_ranks(1, verify_ranks.losses, plan_of(DROPPING), 2)[0]
    for layout in (replace(DROPPING, positions=2), replace(DROPPING, replicas=2, microbatches=(8,))):
        assert on_ranks(2, verify_ranks.losses, plan_of(layout), 2)[0] == pytest.approx(one, rel=1e-9)


def test_tied_weights_on_two_stages_stay_equal() -> None:
    plan = plan_of(replace(WORDS, positions=2))
    assert shared_parameters(plan)
    (first,), (second,) = on_ranks(2, verify_ranks.tied_weights, plan)
    assert (first == second).all()


def test_verify_tells_each_step_as_it_goes() -> None:
    told: list[str] = []
    verify(plan_of(replace(WORDS, precision="float32")), 2, progress=told.append)
    steps = [
        f"step {step}/2 {how}, {precision}"
        for precision in ("float64", "float32")
        for how in ("as planned", "on one device")
        for step in (1, 2)
    ]
    assert told == ["ranks are up, capturing the model", *steps]
