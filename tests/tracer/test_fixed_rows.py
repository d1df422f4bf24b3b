"""Models that take rows in groups, or one number of them, are captured for the batch that is given, undivided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from placer.errors import CaptureError, InfeasibleError, UsageError
from placer.runtime.stages.microbatch import checked
from placer.runtime.verify.parity import verify
from placer.tracer.export.constants import same_constant

BATCH = "x=8x6,y=8x4"


class Grouped(nn.Module):
    """Three layers; between them rows meet in groups of two."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.calls = 0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.two(torch.tanh(self.one(x))).view(-1, 2, 8)
        return functional.mse_loss(self.three((h - h.mean(1, keepdim=True)).reshape(-1, 8)), y)


class Halved(Grouped):
    """Every other row is left out."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.two(torch.tanh(self.one(x)))
        return functional.mse_loss(self.three(h[::2] - h[1::2]), y[::2])


class Saturating(Grouped):
    """In its first call it computes otherwise than later."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x, y) * min(1.0, self.calls / 2)


class Guarded(Grouped):
    """What is not finite becomes no number at all, of which forward makes a tensor."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.two(torch.tanh(self.one(x)))
        no_number = torch.tensor(float("nan"), dtype=x.dtype, device=x.device)
        return functional.mse_loss(self.three(torch.where(torch.isfinite(h), h, no_number)), y)


def test_a_constant_that_is_no_number_is_the_same_for_any_rows() -> None:
    plan = placer.plan(Guarded(), "localx2", batch=BATCH, pins=("data=2", "microbatches=2"))
    assert not any("captured for batches" in note for note in plan.assumptions)


def test_a_constant_is_the_same_bit_by_bit() -> None:
    nan = float("nan")
    alike = (torch.tensor([0.0, nan]), torch.tensor([0.0, nan]))
    alone = (torch.tensor(nan).expand(1, 1), torch.tensor([[nan, 1.0]])[:, ::2])  # of a stride that is not 1
    unlike = [(torch.tensor(0.0), torch.tensor(-0.0)), (torch.tensor(complex(nan, 1)), torch.tensor(complex(nan, 2)))]
    assert same_constant(*alike) and same_constant(*alone)
    assert not any(same_constant(*pair) for pair in unlike)


class First(Grouped):
    """Takes the first of what it has of each row."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.two(torch.tanh(self.one(x)))
        loss: Tensor = functional.mse_loss(self.three(h), y) * h.sum(1).unbind()[0]
        return loss


def test_a_result_for_each_row_is_taken_for_these_rows() -> None:
    notes = placer.capture(First(), batch=BATCH).notes
    assert any("gives a result for each row, as many as there are rows" in note for note in notes)


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", [Grouped, Halved])
def test_the_batch_is_taken_whole_and_the_plan_says_why(kind: type[nn.Module]) -> None:
    plan = placer.plan(kind(), "localx2", batch=BATCH, pins=("pipeline=2",))
    assert plan.microbatches == (8,)
    assert any("captured for batches of 8 rows alone: with other numbers" in note for note in plan.assumptions)
    assert placer.capture(kind(), batch=BATCH).forward_flops == 2 * 8 * (6 * 8 + 8 * 8) + 2 * 8 * 4 * (
        8 if kind is Grouped else 4
    )


def test_another_number_of_replicas_is_refused_with_the_line() -> None:
    with pytest.raises((UsageError, InfeasibleError), match=r"(?s)batches of 8 rows alone.*test_fixed_rows.py"):
        placer.plan(Grouped(), "localx2", batch=BATCH, pins=("data=2",))


def test_a_batch_that_the_model_does_not_take_is_refused_as_ever() -> None:
    with pytest.raises(CaptureError, match=r"correct that line"):
        placer.capture(Grouped(), batch="x=7x6,y=7x4")


def test_what_changes_from_call_to_call_is_not_taken_for_fixed() -> None:
    with pytest.raises(CaptureError):
        placer.capture(Saturating(), batch=BATCH)


def test_a_run_is_fed_the_rows_it_was_captured_for() -> None:
    plan = replace(placer.plan(Grouped(), "localx1", batch=BATCH), microbatches=(6,))
    with pytest.raises(UsageError, match=r"input x has shape \(6, 6\), and the plan is for \(8, 6\) alone"):
        checked({"x": torch.zeros(6, 6), "y": torch.zeros(6, 4)}, plan)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda batch: {"x": batch["x"]}, r"the batch lacks y; it has x"),
        (lambda batch: tuple(batch.values()), r"the batch is a tuple; give a dict of tensors by .* inputs: x, y"),
        (lambda batch: batch | {"y": batch["y"].numpy()}, r"input y of the batch is a ndarray; give a dict of tensors"),
        (lambda batch: batch | {"x": batch["x"][:4]}, r"input x has shape \(4, 6\), and the plan is for \(8, 6\)"),
        (lambda batch: batch | {"x": batch["x"][:, :3]}, r"input x has shape \(8, 3\), and the plan is for \(8, 6\)"),
        (lambda batch: batch | {"x": batch["x"].double()}, r"x is float64, .*float32; give \.to\(torch\.float32\)"),
        (lambda batch: batch | {"y": batch["y"].to(torch.int32)}, r"y is int32, and the plan, in its precision"),
    ],
)  # fmt: skip
def test_a_batch_unlike_the_captured_one_is_refused_in_words(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], told: str
) -> None:
    plan = placer.plan(Grouped(), "localx1", batch=BATCH)
    batch = {"x": torch.zeros(8, 6), "y": torch.zeros(8, 4)}
    assert checked(batch, plan) == batch
    with pytest.raises(UsageError, match=told):
        checked(change(batch), plan)


class Plain(nn.Module):
    """A layer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.layer(x), y)


def test_verify_runs_on_batches_of_ones_own_and_refuses_unlike_ones() -> None:
    plan, batch = placer.plan(Plain(), "localx1", batch=BATCH), {"x": torch.randn(8, 6), "y": torch.randn(8, 4)}
    assert verify(plan, 2, model=Plain(), batches=[batch, batch], precision="float64").passed
    with pytest.raises(UsageError, match=r"input x has shape \(8, 3\), and the plan is for \(8, 6\)"):
        verify(plan, 1, model=Plain(), batches=[batch | {"x": batch["x"][:, :3]}])
