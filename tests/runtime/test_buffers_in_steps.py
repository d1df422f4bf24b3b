"""Buffers that forward writes: once a step in every layout, as on one device; from rows only where these stay whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eager_ranks import differences, on_one_device, trained
from examples.parity.cases import Case, plan_of
from opaque_models import WIDTH
from placer import legality
from pool import on_ranks
from writing_models import BATCH

pytestmark = pytest.mark.in_turns

SPECTRAL = Case(model="writing_models:spectral", shapes=BATCH)
COUNTING = Case(model="writing_models:counting", shapes=BATCH)
WHOLE = (8,)
ROWS_ALONE = (("x", (8, WIDTH)),)
CASES = [
    SPECTRAL,
    replace(SPECTRAL, replicas=2, recompute=True),
    replace(SPECTRAL, replicas=2, sharding="parameters"),
    replace(SPECTRAL, positions=2, schedule="zero-bubble"),
    replace(COUNTING, microbatches=(8,)),
    replace(COUNTING, recompute=True),
    replace(COUNTING, replicas=2, shares=(3, 1)),
    replace(COUNTING, replicas=2, sharding="parameters", recompute=True),
    replace(COUNTING, positions=2, recompute=True),
    replace(COUNTING, positions=2, replicas=2, sharding="gradients"),
    Case(model="writing_models:averaging", shapes=BATCH, microbatches=WHOLE),
    Case(model="writing_models:averaging", shapes=BATCH, microbatches=WHOLE, positions=2, recompute=True),
    Case(model="writing_models:averaging", shapes=BATCH, microbatches=WHOLE, axis="tensor", degree=2),
    Case(model="writing_models:codebook", shapes=BATCH, microbatches=WHOLE),
    Case(model="opaque_models:averaged", shapes=ROWS_ALONE, microbatches=WHOLE),
    Case(model="opaque_models:averaged", shapes=ROWS_ALONE, microbatches=WHOLE, recompute=True),
    Case(model="opaque_models:counted", shapes=ROWS_ALONE, microbatches=WHOLE, recompute=True),
    Case(model="writing_models:deciding", shapes=BATCH, microbatches=WHOLE),
    Case(model="writing_models:deciding", shapes=BATCH, microbatches=WHOLE, recompute=True),
    Case(model="writing_models:deciding", shapes=BATCH, microbatches=WHOLE, positions=2, recompute=True),
    Case(
        model="writing_models:deciding",
        shapes=BATCH,
        microbatches=WHOLE,
        positions=2,
        recompute=True,
        schedule="zero-bubble",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_buffers_are_written_as_on_one_device(case: Case) -> None:
    plan = plan_of(case)
    legality.require(plan)
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("layout", [{"microbatches": (4, 4)}, {"microbatches": (8,), "replicas": 2}])
@pytest.mark.parametrize("model", ["averaging", "codebook"])
def test_a_buffer_written_from_the_rows_is_refused_where_these_are_divided(
    model: str, layout: dict[str, object]
) -> None:
    broken = legality.check(plan_of(replace(Case(model=f"writing_models:{model}", shapes=BATCH), **layout)))  # type: ignore[arg-type]
    assert [one.rule for one in broken] == ["loss"]
    for word in ("the buffer layers.", "aten::copy_", "writing_models.py:"):
        assert word in broken[0].message
