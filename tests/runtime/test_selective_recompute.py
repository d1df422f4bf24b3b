"""Blocks that run again but for products, and stages of which some blocks do, give what one device gives by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import verify_ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from placer.runtime.stages.kept_results import Keeping, kept_contexts
from placer.runtime.stages.recompute import runs_again
from pool import on_ranks

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT, recompute="selective")
DROPPING = replace(WORDS, model="examples.parity.models:dropping_words")
IMAGES = replace(WORDS, model="examples.parity.models:images", shapes=parity_models.IMAGES)
GPT2 = replace(WORDS, model="examples.models:tiny_gpt2", shapes=())

CASES = [
    GPT2,
    DROPPING,
    replace(DROPPING, positions=2),
    replace(DROPPING, replicas=2, microbatches=(4, 3, 1)),
    replace(IMAGES, positions=2),
    replace(IMAGES, replicas=2, sharding="parameters"),
    replace(WORDS, replicas=2, sharding="parameters"),
    replace(WORDS, positions=2, schedule="zero-bubble"),
    replace(WORDS, positions=2, schedule="zero-bubble", precision="bfloat16-autocast"),
    replace(WORDS, positions=2, schedule="interleaved", turns=2),
    replace(WORDS, degree=2),
    replace(GPT2, degree=2),
    replace(DROPPING, positions=2, replicas=2, sharding="gradients"),
    replace(WORDS, positions=2, degree=2, schedule="zero-bubble"),
    replace(WORDS, replicas=2, degree=2, sharding="parameters"),
    replace(WORDS, degree=2, axis="sequence"),
    replace(IMAGES, degree=2, axis="height"),
    replace(DROPPING, recomputed=2),
    replace(DROPPING, positions=2, recompute=True, recomputed=1),
    replace(WORDS, positions=2, recomputed=1, schedule="zero-bubble"),
    replace(WORDS, degree=2, recompute=True, recomputed=2),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_plan_equals_the_reference_run(case: Case) -> None:
    report = on_ranks(case.ranks, verify_ranks.one, plan_of(case))[0]
    assert report.passed, str(report)
    assert {c.quantity for c in report.comparisons} >= {"loss", "gradients", "parameters", "evaluation"}


@pytest.mark.parametrize("degree", [1, 2])
def test_products_are_computed_once_a_pass_and_what_lies_between_them_again(degree: int) -> None:
    case = replace(GPT2, degree=degree)
    without, selective, full = (
        on_ranks(degree, verify_ranks.kernels, plan_of(replace(case, recompute=again)))[0]
        for again in (False, "selective", True)
    )
    products = {name for name in full if name in ("addmm", "mm", "bmm")}
    assert products
    assert sum(selective[name] for name in products) == sum(without[name] for name in products)
    assert sum(full[name] for name in products) > sum(without[name] for name in products)
    assert selective["native_layer_norm"] == full["native_layer_norm"] > without["native_layer_norm"]


def test_what_is_kept_may_not_be_written_before_the_second_run() -> None:
    weight = torch.ones(2, 2, requires_grad=True)

    def block(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = Keeping(torch.mm)(x.exp(), weight)
        assert isinstance(made, torch.Tensor)
        made.detach().add_(1)
        return (made.exp(),)

    (made,) = runs_again(block, torch.ones(2, 2, requires_grad=True), contexts=kept_contexts)
    with pytest.raises(RuntimeError, match="written in place after it was kept"):
        made.sum().backward()  # type: ignore[no-untyped-call]
