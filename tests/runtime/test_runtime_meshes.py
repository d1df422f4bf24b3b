"""Plans whose stages lie on meshes of different shapes equal eager torch on one device, and do what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mesh_ranks
import split_runs
import verify_ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case
from mesh_cases import on_meshes, with_degrees
from mesh_plans import Side
from placer.legality import check
from placer.plans.plan import Plan
from placer.program.buckets import shared_parameters
from pool import on_ranks
from split_pickers import case_id, columns_and_rows, convolutions, megatron_llama, nothing, rows_of_the_sequence

pytestmark = pytest.mark.in_turns

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = Case(model="examples.parity.models:dropping_words", shapes=parity_models.TEXT)
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES)
DIRECTIONS = Case(model="examples.parity.models:directions", shapes=parity_models.TEXT)
GPT2 = Case(model="examples.models:tiny_gpt2")
LLAMA = Case(model="examples.models:tiny_llama")
RESNET = Case(model="examples.models:tiny_resnet")

SEQUENCE = rows_of_the_sequence(nothing)
HEIGHT = convolutions("space 0")


def shared(*shares: int) -> Side:
    return Side(replicas=len(shares), shares=shares)


def sharded(replicas: int, sharding: str = "parameters") -> Side:
    return Side(replicas=replicas, sharding=sharding)  # type: ignore[arg-type]


UNEQUAL: list[tuple[Case, tuple[Side | int, ...]]] = [
    (replace(WORDS, schedule="gpipe"), (1, 2)),
    (WORDS, (2, 1)),
    (replace(WORDS, schedule="zero-bubble", microbatches=(4, 3, 1)), (3, 2)),
    (replace(WORDS, recompute=True, microbatches=(4, 3, 1)), (2, 3)),
    (replace(WORDS, schedule="gpipe", microbatches=(1, 6, 1)), (1, 3)),
    (replace(DROPPING, microbatches=(4, 3, 1)), (2, 1, 3)),
    (replace(WORDS, schedule="interleaved", turns=2, microbatches=(4, 4)), (2, 1)),
    (replace(WORDS, microbatches=(4, 4)), (shared(3, 1), 2)),
    (replace(DROPPING, schedule="zero-bubble", microbatches=(5, 3)), (shared(1, 3), shared(3, 2, 1))),
    (replace(WORDS, optimizer="sgd"), (sharded(2), 1)),
    (replace(WORDS, microbatches=(4, 3, 1)), (sharded(2, "optimizer"), sharded(3, "optimizer"))),
    (replace(WORDS, microbatches=(4, 3, 1)), (1, sharded(3, "gradients"))),
    (replace(WORDS, schedule="gpipe", microbatches=(4, 3, 1)), (sharded(2), sharded(3, "gradients"))),
    (replace(DIRECTIONS, microbatches=(4, 3, 1)), (sharded(2), 1, 2)),
    (replace(WORDS, precision="bfloat16-autocast"), (1, 2)),
    (replace(IMAGES, microbatches=(4, 3, 1)), (3, 2)),
    (replace(IMAGES, recompute=True, microbatches=(4, 3, 1)), (shared(1, 3), sharded(2, "gradients"))),
    (GPT2, (2, 1)),
    (replace(RESNET, microbatches=(5, 3)), (1, 2)),
    (replace(LLAMA, schedule="gpipe"), (2, 3)),
]

SPLIT: list[tuple[Case, tuple[Side | int, ...], tuple[int, ...], str, object]] = [
    (WORDS, (1, 1), (2, 1), "whole", columns_and_rows),
    (WORDS, (2, 1), (1, 2), "cut 1", SEQUENCE),
    (replace(WORDS, schedule="zero-bubble"), (1, 1), (2, 3), "cut 1", SEQUENCE),
    (replace(WORDS, microbatches=(4, 3, 1)), (1, 2), (2, 2), "cut 1", SEQUENCE),
    (replace(WORDS, microbatches=(4, 3, 1)), (sharded(2), 1), (1, 2), "whole", columns_and_rows),
    (DROPPING, (1, 1, 1), (2, 1, 3), "cut 1", SEQUENCE),
    (IMAGES, (2, 1), (1, 2), "cut 2", HEIGHT),
    (LLAMA, (2, 1), (1, 2), "cut 1", megatron_llama),
]


@pytest.mark.parametrize(("case", "sides"), UNEQUAL, ids=str)
def test_unequal_numbers_of_replicas_equal_the_reference_run(case: Case, sides: tuple[Side | int, ...]) -> None:
    require_equal(on_meshes(case, sides))


@pytest.mark.parametrize(("case", "sides", "degrees", "borders", "pick"), SPLIT, ids=case_id)
def test_unequal_degrees_equal_the_reference_run(
    case: Case, sides: tuple[Side | int, ...], degrees: tuple[int, ...], borders: str, pick: object
) -> None:
    require_equal(with_degrees(case, sides, degrees, pick, borders))  # type: ignore[arg-type]


def require_equal(plan: Plan) -> None:
    assert check(plan) == ()
    reports = on_ranks(plan.world_size, verify_ranks.one, plan)
    assert reports[0].passed, str(reports[0])
    assert {c.quantity for c in reports[0].comparisons} >= {"loss", "gradients", "parameters", "evaluation"}
    assert all(other == reports[0] for other in reports)


def test_float64_is_held_to_1e_9_and_batch_norm_says_whose_rows_it_takes() -> None:
    report = on_ranks(3, verify_ranks.one, on_meshes(IMAGES, (1, 2)))[0]
    assert report.tolerance == 1e-9
    assert any("the replicas of its stage ((1, 2))" in note for note in report.notes)


@pytest.mark.parametrize(
    "plan",
    [
        on_meshes(replace(WORDS, microbatches=(4, 3, 1)), (3, 2)),
        on_meshes(replace(WORDS, schedule="zero-bubble"), (shared(3, 1), 1)),
        on_meshes(WORDS, (sharded(2), sharded(3, "gradients"))),
        with_degrees(replace(WORDS, microbatches=(4, 3, 1)), (2, 1), (1, 2), SEQUENCE, "cut 1"),
    ],
    ids=["3-2", "3:1-1", "sharded", "degrees"],
)
def test_ranks_do_what_their_programs_say(plan: Plan) -> None:
    for count, differences in on_ranks(plan.world_size, split_runs.differences, plan):
        assert count > 0
        assert differences == ()


def test_tied_weights_on_unequal_stages_stay_equal() -> None:
    plan = on_meshes(WORDS, (sharded(2), 1))
    assert shared_parameters(plan)
    whole = on_ranks(3, mesh_ranks.trained_weights, plan)
    for name in shared_parameters(plan):
        assert all((one[name] == whole[0][name]).all() for one in whole)


def test_a_gradient_of_other_rows_is_caught() -> None:
    report = on_ranks(3, mesh_ranks.with_rows_exchanged, on_meshes(WORDS, (1, 2)))[0]
    assert not report.passed
    assert {c.quantity for c in report.comparisons if c.relative > report.tolerance} >= {"gradients"}


LAYOUTS = {
    "1-2": on_meshes(WORDS, (1, 2)),
    "sharded 2-1": on_meshes(WORDS, (sharded(2), 1)),
    "degree 2-1": with_degrees(WORDS, (1, 1), (2, 1), columns_and_rows),
    "data": replace(on_meshes(WORDS, (3,)), schedule="1f1b"),
}


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("1-2", "sharded 2-1"), ("sharded 2-1", "degree 2-1"), ("degree 2-1", "data"), ("data", "1-2")],
)
def test_a_checkpoint_of_one_shape_goes_on_under_another(saved: str, loaded: str, tmp_path: Path) -> None:
    for undisturbed, resumed in on_ranks(3, split_runs.resumed, LAYOUTS[saved], LAYOUTS[loaded], str(tmp_path)):
        assert resumed == pytest.approx(undisturbed, rel=1e-9)
