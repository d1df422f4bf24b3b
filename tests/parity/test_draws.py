"""Random numbers of a step: alike in every layout and in second runs, others in each step, of their distribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import verify_ranks
from eager_ranks import drawn_from
from examples.parity.cases import Case, capture_of, plan_of
from examples.parity.drawing import DRAWS, factory
from opaque_models import WIDTH
from placer.api import plan as planned
from placer.legality import check
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime.stages.draws import draw
from placer.runtime.stages.keyed_numbers import NO_ROW, row_keys
from placer.runtime.stages.pass_context import PassContext
from pool import on_ranks

WHOLE_BATCH = "drawn from classes"
LAYOUTS: dict[str, dict[str, Any]] = {
    "recompute": {"recompute": True},
    "selective recompute": {"recompute": "selective"},
    "microbatches": {"microbatches": (3, 4, 1)},
    "microbatches that recompute": {"microbatches": (4, 4), "recompute": True},
    "replicas": {"replicas": 2, "microbatches": (8,)},
    "uneven replicas": {"replicas": 2, "shares": (3, 1), "microbatches": (4, 4)},
    "pipeline": {"positions": 2, "microbatches": (4, 4)},
    "sharded": {"replicas": 2, "sharding": "parameters", "microbatches": (4, 4)},
    "tensor": {"degree": 2, "microbatches": (8,)},
    "tensor that recomputes": {"degree": 2, "recompute": True, "microbatches": (8,)},
}


def case_of(name: str) -> Case:
    return Case(model=factory(name), shapes=(("x", (8, 8)), ("y", (8, 8))), microbatches=(8,))


def losses(case: Case) -> list[float]:
    return on_ranks(case.ranks, verify_ranks.losses, plan_of(case), 3)[0]


@pytest.mark.in_turns
@pytest.mark.parametrize("name", [name for name in DRAWS if name != WHOLE_BATCH])
def test_no_layout_changes_what_is_drawn(name: str) -> None:
    case = case_of(name)
    alone = losses(case)
    assert len({round(loss, 12) for loss in alone}) == 3
    for layout, choices in LAYOUTS.items():
        assert losses(replace(case, **choices)) == pytest.approx(alone, rel=1e-9), layout


@pytest.mark.parametrize("name", [name for name in DRAWS if name != WHOLE_BATCH])
@pytest.mark.parametrize("layout", ["uneven replicas", "tensor that recomputes"])
def test_the_plan_equals_the_model_by_itself_given_the_same_numbers(name: str, layout: str) -> None:
    case = replace(case_of(name), **LAYOUTS[layout])
    report = on_ranks(case.ranks, verify_ranks.one, plan_of(case))[0]
    assert report.passed, str(report)


@pytest.mark.in_turns
def test_what_is_not_keyed_by_rows_keeps_the_batch_whole_and_is_drawn_alike_in_every_layout() -> None:
    case = case_of(WHOLE_BATCH)
    found = check(plan_of(replace(case, microbatches=(4, 4))))
    assert any("multinomial" in str(one) and "draws random numbers for the whole batch" in str(one) for one in found)
    alone = losses(case)
    for choices in (LAYOUTS["recompute"], LAYOUTS["tensor"], LAYOUTS["tensor that recomputes"]):
        assert losses(replace(case, **choices)) == pytest.approx(alone, rel=1e-9), choices


def context(step: int, rows: int, first: int = 0) -> PassContext:
    keys, one = row_keys(7, step, first, rows), row_keys(7, step, NO_ROW, 1)
    return PassContext(rows=rows, global_rows=rows, training=True, keys=keys, batch_key=one)


SIZES = [64, 4096]
AT = (torch.float64, None, torch.device("cpu"), None)  # dtype, layout, device, pinned memory


def test_numbers_are_those_of_their_distribution() -> None:
    aten, mode, like = torch.ops.aten, context(0, 64), torch.empty(64, 4096, dtype=torch.float64)
    within = 5 / (64 * 4096) ** 0.5  # five deviations of a mean of so many numbers of variance 1
    uniform = draw(aten.rand.default, 0, True, SIZES, *AT, mode=mode)
    assert float(uniform.min()) >= 0 and float(uniform.max()) < 1
    assert float(uniform.mean()) == pytest.approx(1 / 2, abs=within)
    assert float(uniform.var()) == pytest.approx(1 / 12, abs=within)
    normal = draw(aten.randn.default, 1, True, SIZES, *AT, mode=mode)
    moments = [float(normal.pow(power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=20 * within)
    assert float((normal[:, 1:] * normal[:, :-1]).mean()) == pytest.approx(0, abs=within)
    assert float((normal[1:] * normal[:-1]).mean()) == pytest.approx(0, abs=within)
    pairs = draw(aten.randn.default, 1, True, SIZES, torch.complex128, *AT[1:], mode=mode)
    for part in (pairs.real, pairs.imag):
        assert float(part.pow(2).mean()) == pytest.approx(1 / 2, abs=5 * within)
    assert float((pairs.real * pairs.imag).mean()) == pytest.approx(0, abs=within)
    exponential = draw(aten.exponential_.default, 2, True, like, 2.0, None, mode=mode)
    assert float(exponential.mean()) == pytest.approx(1 / 2, abs=within) and float(exponential.min()) > 0
    whole = draw(aten.randint.low, 3, True, -2, 3, SIZES, *AT, mode=mode)
    assert set(whole.flatten().tolist()) == {-2, -1, 0, 1, 2}
    assert float(whole.double().mean()) == pytest.approx(0, abs=2 * within)


def test_a_draw_depends_on_step_op_and_row_and_on_nothing_else() -> None:
    aten = torch.ops.aten

    def made(step: int, number: int, rows: int, first: int = 0) -> torch.Tensor:
        return draw(aten.randn.default, number, True, [rows, 16], *AT, mode=context(step, rows, first))

    whole = made(3, 0, 8)
    assert whole[5:].equal(made(3, 0, 3, first=5))
    assert not whole.equal(made(4, 0, 8)) and not whole.equal(made(3, 1, 8))


def test_a_mask_of_what_has_no_rows_is_another_in_each_step() -> None:
    first, second = (context(step, 8).keys_of(False) for step in (0, 1))
    assert not first.equal(second)


@pytest.mark.in_turns
def test_a_part_that_is_not_looked_into_draws_alike_on_all_devices_and_in_every_run() -> None:
    def plan(*pins: str) -> Plan:
        settings = RunSettings(precision="float64")
        return planned(
            "opaque_models:noisy", "localx2", batch={"x": (4, WIDTH)}, opaque=("noise",), settings=settings, pins=pins
        )

    whole, cut = plan("tensor=1", "pipeline=1"), plan("tensor=2")
    (once,), (again,) = on_ranks(1, drawn_from, whole, 3), on_ranks(1, drawn_from, whole, 4)
    assert once == again
    for losses in on_ranks(2, drawn_from, cut, 5):
        assert losses == pytest.approx(once, rel=1e-9)
    assert capture_of(whole).unkeyed == ("noise (not looked into)",)  # which `verify` refuses
