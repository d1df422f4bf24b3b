"""Weights of opaque parts that a gradient reaches in some steps, from some rows, on some ranks: what nobody reached has
none, as on one device, so that the optimizer leaves it as it is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

import placer
from eager_ranks import reached, reached_on_one_device
from examples.parity.cases import run_case
from opaque_models import WIDTH
from placer import RunSettings
from placer.plans.plan import Plan
from placer.plans.settings import Precision
from placer.program.told import told_weights
from placer.rules import OpaqueCost
from pool import on_ranks
from split_runs import resumed

pytestmark = pytest.mark.in_turns

ROWS = 8
STEADY = frozenset(f"layers.{number}.{kind}" for number in range(3) for kind in ("weight", "bias"))
MOST, FEW = (
    frozenset(f"router.{name}" for name in names)
    for names in (("most.weight", "most.bias"), ("few.weight", "few.bias", "scale"))
)
LAYOUTS: dict[str, dict[str, object]] = {
    "DDP": {"data": 2, "microbatches": 1},
    "DDP in microbatches": {"data": 2, "microbatches": 2},
    "ZeRO 1": {"data": 2, "shard": "optimizer", "microbatches": 2},
    "ZeRO 2": {"data": 2, "shard": "gradients", "microbatches": 2},
    "ZeRO 3": {"data": 2, "shard": "parameters", "microbatches": 1},
    "stages": {"data": 2, "pipeline": 2, "microbatches": 2},
    "stages under ZeRO 3": {"data": 2, "pipeline": 2, "microbatches": 2, "shard": "parameters"},
    "microbatches": {"data": 1, "pipeline": 2, "microbatches": 4},
}


@cache
def plan_of(layout: str, precision: Precision = "float64") -> Plan:
    """The router's rows over two ranks or four."""
    pins: dict[str, object] = {"pipeline": 1, "tensor": 1, "shard": "none"} | LAYOUTS[layout]
    return placer.plan(
        "opaque_models:routed_by_row", f"localx{int(str(pins['data'])) * int(str(pins['pipeline']))}",
        batch={"x": (ROWS, WIDTH)}, pins=pins, opaque={"router": OpaqueCost(rows_apart=True)},
        settings=RunSettings(precision=precision, weight_decay=0.1), budget=50,
    )  # fmt: skip


def batches(dtype: torch.dtype = torch.float64) -> list[dict[str, torch.Tensor]]:
    """Rows for `few`: in the first half, none, the last alone, all."""
    generator, found = torch.Generator().manual_seed(0), []
    for rows in (slice(0, ROWS // 2), slice(0, 0), slice(ROWS - 1, ROWS), slice(0, ROWS)):
        x = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        x[:, 0] = 0
        x[rows, 0] = 2
        found.append({"x": x.to(dtype)})
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_no_row_reaches_has_no_gradient_and_stays_as_it_is(layout: str) -> None:
    plan, given = plan_of(layout), batches()
    steps, state = reached_on_one_device(plan, given)
    assert steps == (STEADY | MOST | FEW, STEADY | MOST, STEADY | MOST | FEW, STEADY | FEW)
    found = on_ranks(plan.world_size, reached, plan, given)
    assert found[0][0] == steps
    for _, weights in found:
        for name, one in weights.items():
            torch.testing.assert_close(one, state[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", ["DDP in microbatches", "ZeRO 2"])
def test_gradients_of_16_bits_that_some_microbatches_lack_are_summed(layout: str) -> None:
    plan = plan_of(layout, "bfloat16")
    assert on_ranks(2, reached, plan, batches(torch.bfloat16))[0][0] == (
        STEADY | MOST | FEW, STEADY | MOST, STEADY | MOST | FEW, STEADY | FEW
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["DDP", "ZeRO 3"])
def test_a_run_goes_on_that_had_not_reached_all_weights(layout: str, tmp_path: Path) -> None:
    plan, other, given = plan_of(layout), plan_of("ZeRO 1"), batches()
    given = [given[1], given[1], given[0], given[2]]  # the checkpoint is written after two
    straight, again = on_ranks(2, resumed, plan, other, str(tmp_path), given)[0]
    assert again == pytest.approx(straight, rel=1e-9)


def test_a_plan_with_such_a_part_is_verified() -> None:
    report = on_ranks(2, run_case, plan_of("DDP in microbatches"))[0]
    assert report.passed, str(report)


def test_ranks_tell_each_other_nothing_of_a_model_that_ops_say_all_of() -> None:
    assert told_weights(plan_of("DDP").graph)
    plain = placer.plan("examples.gpt:build", "localx2", batch={"input_ids": (2, 8), "labels": (2, 8)}, budget=10)
    assert told_weights(plain.graph) == ()
