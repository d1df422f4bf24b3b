"""What runs again: which products keep their results, and what a stage keeps and takes of each way to recompute."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from placer.costs.kept_results import kept_results
from placer.costs.step_estimate import estimate
from placer.graph import Affine, BlockClass, Op, OpKind, Parameter, Tensor
from placer.legality import check
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan, Recompute
from placer.plans.settings import RunSettings

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT, precision="float32", microbatches=(8,))
VALUE = Tensor(shape=(Affine(0, 1), Affine(4)), dtype="float32", requires_grad=True)


def op(name: str, kind: OpKind, *inputs: str) -> Op:
    return Op(name=name, target=f"aten.{name}.default", kind=kind, inputs=inputs, outputs=(VALUE,))


def block(*ops: Op) -> BlockClass:
    weight = Parameter(shape=(4, 4), dtype="float32")
    return BlockClass(inputs=(VALUE,), ops=ops, outputs=(f"o{len(ops) - 1}.0",), parameters=(weight, weight))


def test_scores_run_again_and_what_weighs_values_by_them_does_not() -> None:
    attention = block(
        op("linear", "matmul", "i0", "p0"),
        op("view", "view", "o0.0"),
        op("matmul", "matmul", "o1.0", "o1.0"),
        op("mul", "pointwise", "o2.0"),
        op("softmax", "reduction", "o3.0"),
        op("matmul", "matmul", "o4.0", "o1.0"),
        op("linear", "matmul", "o5.0", "p1"),
    )
    assert kept_results(attention, RunSettings(), "cuda") == (0, 5, 6)


def test_logits_of_a_softmax_are_kept_for_a_product_with_weights_makes_them() -> None:
    router = block(op("linear", "matmul", "i0", "p0"), op("softmax", "reduction", "o0.0"))
    assert kept_results(router, RunSettings(), "cuda") == (0,)


def test_a_result_that_is_written_in_place_is_not_kept() -> None:
    written = block(op("linear", "matmul", "i0", "p0"), op("view", "view", "o0.0"), op("relu_", "pointwise", "o1.0"))
    assert kept_results(written, RunSettings(), "cuda") == ()


def test_attention_is_kept_where_a_fused_kernel_runs_it() -> None:
    fused = op("scaled_dot_product_attention", "attention", "i0", "i0", "i0")
    attention = block(replace(fused, saved_bytes=Affine(0, 64), fused_saved_bytes=Affine(0, 32)))
    assert kept_results(attention, RunSettings(attention="flash"), "cuda") == (0,)
    assert kept_results(attention, RunSettings(attention="eager"), "cuda") == ()


def ledger(recompute: Recompute, recomputed: int | None = None) -> Ledger:
    return estimate(plan_of(replace(WORDS, recompute=recompute, recomputed=recomputed)))


def test_selective_recompute_lies_between_none_and_all_in_seconds_and_bytes() -> None:
    none, selective, full = ledger(False), ledger("selective"), ledger(True)
    assert 0 == none.seconds.recompute < selective.seconds.recompute < full.seconds.recompute
    assert none.step_seconds < selective.step_seconds < full.step_seconds
    kept = [one.memory[0].activations for one in (none, selective, full)]
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("way", [True, "selective"])
def test_each_block_more_that_recomputes_takes_longer_and_keeps_less(way: Recompute) -> None:
    blocks = len(plan_of(WORDS).graph.blocks)
    found = [ledger(False), *(ledger(way, count) for count in range(1, blocks - 1)), ledger(way)]
    times = [one.seconds.recompute for one in found]
    assert times == sorted(times)
    assert len(set(times)) > 3
    held = [one.memory[0].total for one in found]
    assert held[0] > held[-1]
    assert all(later <= before for before, later in pairwise(held[1:]))


def test_a_plan_of_before_says_yes_or_no_and_one_of_now_says_how_much() -> None:
    plan = plan_of(replace(WORDS, recompute="selective", recomputed=2))
    again = Plan.from_json(plan.to_json())
    assert (again.stages[0].recompute, again.stages[0].recomputed) == ("selective", 2)
    document = json.loads(plan.to_json())
    for stage in document["stages"]:
        del stage["recomputed"]
        stage["recompute"] = True
    assert Plan.from_json(json.dumps(document)).stages[0].again is True


def test_a_number_of_blocks_that_recompute_needs_a_recompute_and_fewer_blocks_than_there_are() -> None:
    blocks = len(plan_of(WORDS).graph.blocks)
    for case in (replace(WORDS, recomputed=1), replace(WORDS, recompute=True, recomputed=blocks)):
        assert [one.rule for one in check(plan_of(case))] == ["recompute"]
    assert not check(plan_of(replace(WORDS, recompute=True, recomputed=blocks - 1)))
