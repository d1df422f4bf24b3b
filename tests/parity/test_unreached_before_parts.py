"""Weights before an opaque part that gives its inputs a gradient in some steps, for some rows, on some ranks: without
one they have none, as on one device, neither decay nor momentum moves them, and ranks keep to their programs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Literal

import pytest
import torch

import placer
from eager_ranks import done_otherwise, reached, reached_on_one_device
from opaque_models import WIDTH
from placer import RunSettings
from placer.plans.plan import Plan
from placer.program.instructions import Message
from placer.program.lowering import lower
from placer.rules import OpaqueCost
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS = 7
ADAMW = RunSettings(precision="float64", weight_decay=0.1, clip_norm=0.01)
SGD = RunSettings(precision="float64", optimizer="sgd", momentum=0.9, weight_decay=0.1)
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"data": 2, "microbatches": 2},
    "ZeRO 2": {"data": 2, "shard": "gradients", "microbatches": 1},
    "ZeRO 3": {"data": 2, "shard": "parameters", "microbatches": 1},
    "ZeRO 3 in microbatches": {"data": 2, "shard": "parameters", "microbatches": 4},
    "stages": {"pipeline": 2, "microbatches": 1},
    "stages in two parts": {"pipeline": 2, "microbatches": 4, "schedule": "zero-bubble"},
    "stages in turns": {"pipeline": 2, "microbatches": 4, "schedule": "interleaved"},
    "three stages": {"pipeline": 3, "microbatches": 2, "schedule": "1f1b"},
    "stages of two": {"data": 2, "pipeline": 2, "microbatches": 2},
    "stages under ZeRO 3": {"data": 2, "pipeline": 2, "microbatches": 4, "shard": "parameters"},
    "devices that divide ops": {"tensor": 2, "microbatches": 2},
    "all of it": {"data": 2, "tensor": 2, "microbatches": 1, "shard": "parameters"},
}
COMPILED: dict[str, Literal["none", "full"]] = {"replicas": "none", "ZeRO 3": "full", "three stages": "none"}
MODELS = ("skipped", "tied_across", "stopped")


@cache
def plan_of(model: str, layout: str, settings: RunSettings) -> Plan:
    """The model so laid out."""
    pins: dict[str, object] = {"data": 1, "pipeline": 1, "tensor": 1, "shard": "none"} | LAYOUTS[layout]
    ranks = int(str(pins["data"])) * int(str(pins["pipeline"])) * int(str(pins["tensor"]))
    return placer.plan(
        f"detaching_models:{model}", f"localx{ranks}", batch={"x": (ROWS, WIDTH)}, pins=pins, settings=settings,
        opaque={"part": OpaqueCost(rows_apart=True)}, budget=50,
    )  # fmt: skip


def batches() -> list[dict[str, torch.Tensor]]:
    """Rows that give a gradient: all, none, the first, the last, none."""
    generator, found = torch.Generator().manual_seed(0), []
    for rows in (slice(0, ROWS), slice(0, 0), slice(0, 1), slice(ROWS - 1, ROWS), slice(0, 0)):
        x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        x[:, 0] = 0
        x[rows, 0] = 2
        found.append({"x": x})
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_weights_before_a_part_that_gives_no_gradient_stay_as_they_are(model: str, layout: str) -> None:
    assert "second.bias" in as_on_one_device(plan_of(model, layout, SGD if layout == "stages" else ADAMW))


@pytest.mark.parametrize("layout", COMPILED)
@pytest.mark.parametrize("model", ["skipped", "stopped", "ends_in_part"])
def test_compiled_code_gives_them_no_zeros_either(model: str, layout: str) -> None:
    plan = plan_of(model, layout, replace(ADAMW, recompute=COMPILED[layout]))
    assert ("first.bias" if model == "ends_in_part" else "second.bias") in as_on_one_device(plan, "aot_eager")


def as_on_one_device(plan: Plan, compile: str = "") -> frozenset[str]:
    """The weights that have a gradient in the first step and none in the second; fails where ranks have others."""
    given = batches()
    steps, state = reached_on_one_device(plan, given)
    found = on_ranks(plan.world_size, reached, plan, given, compile)
    assert found[0][0] == steps
    for _, weights in found:
        for name, one in weights.items():
            torch.testing.assert_close(one, state[name], rtol=0, atol=1e-9)
    return steps[0] - steps[1]


@pytest.mark.parametrize("layout", ["ZeRO 3 in microbatches", "stages under ZeRO 3"])
def test_ranks_do_what_their_programs_say_whatever_gradients_there_are(layout: str) -> None:
    plan = plan_of("skipped", layout, ADAMW)
    assert on_ranks(plan.world_size, done_otherwise, plan, batches()) == [()] * plan.world_size


def test_gradients_say_whether_they_are_there_only_where_a_step_tells() -> None:
    plain = placer.plan(
        "examples.gpt:build", "localx2", batch={"input_ids": (2, 8), "labels": (2, 8)}, pins={"pipeline": 2}, budget=10
    )
    for plan, tells in ((plan_of("skipped", "stages", SGD), True), (plain, False)):
        sent = [one for program in lower(plan) for one in program.meetings if isinstance(one, Message)]
        assert {one.tells for one in sent if one.kind == "gradient"} == {tells}
        assert not any(one.tells for one in sent if one.kind == "activation")
