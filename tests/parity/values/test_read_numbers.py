"""Numbers that forward reads of tensors, for people or to compute with, and checks of them: as in eager, or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from reading_models import REFUSED, RIGHT, WIDTH, Reader
from torch import Tensor

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings
from placer.errors import CaptureError
from placer.tracer import capture, trace
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS = 6


def batches(seed: int) -> Iterator[dict[str, Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    while True:
        x, labels = (torch.randn(ROWS, WIDTH, generator=draws, dtype=torch.float64) for _ in range(2))
        yield {"x": x, "labels": labels}


@pytest.mark.parametrize("name", RIGHT)
def test_what_forward_reads_is_what_eager_reads(name: str) -> None:
    """Over steps, of one model, which finds what its last step kept."""
    model, given = Reader(RIGHT[name]).double(), batches(1)
    traced = trace(Reader(RIGHT[name]).double(), next(given)).module
    weights = list(traced.parameters())
    for _ in range(3):
        batch = next(given)
        expected, (found,) = model(**batch), traced(*batch.values())
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        wanted = torch.autograd.grad(expected, list(model.parameters()))
        for one, other in zip(torch.autograd.grad(found, weights), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_what_hangs_on_values_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(CaptureError, match=r"reading_models\.py|a step after the first|forward keeps"):
        capture(Reader(REFUSED[name]).double(), batch=next(batches(1)))


def test_what_no_run_tells_or_checks_is_said() -> None:
    notes = {name: " ".join(capture(Reader(RIGHT[name]).double(), batch=next(batches(1))).notes) for name in RIGHT}
    assert "to tell of them (reading_models.py:" in notes["told"]
    assert "to raise (reading_models.py:" in notes["checked"]
    assert "does not look at values" not in notes["divided_by_a_count"]


LAYOUTS: dict[tuple[str, str], dict[str, object]] = {
    ("counting", "replicas"): {"data": 2, "microbatches": 2},
    ("checking", "cut"): {"tensor": 2},
}


@pytest.mark.parametrize(("model", "layout"), LAYOUTS, ids=lambda one: one)
def test_a_model_that_reads_trains_as_on_one_device(model: str, layout: str) -> None:
    batch = {"x": ((8, WIDTH), "float64"), "labels": ((8, WIDTH), "float64")}
    plan = placer.plan(
        f"reading_models:{model}", "localx2", batch=batch, pins=LAYOUTS[model, layout],
        settings=RunSettings(precision="float64"), budget=20,
    )  # fmt: skip
    for found in on_ranks(2, trained, plan):
        assert differences(found, on_one_device(plan)) == []
