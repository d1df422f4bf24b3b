"""Masks of bytes, as models written before torch had bools make them, choose as in eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings
from placer.tracer import capture, trace
from pool import on_ranks

ROWS, WIDTH = 8, 6
BATCH = {"x": ((ROWS, WIDTH), "float64")}
Case = Callable[[Tensor, Tensor], Tensor]

pytestmark = [
    pytest.mark.in_turns,
    pytest.mark.filterwarnings(
        "ignore:where received a uint8 condition tensor", "ignore:indexing with dtype torch.uint8"
    ),
]


def of_two(h: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, h.sin(), h)


def as_a_method(h: Tensor, mask: Tensor) -> Tensor:
    return h.where(mask, h * 2) + h.cos().where(condition=mask, other=h)


def by_name(h: Tensor, mask: Tensor) -> Tensor:
    return torch.where(condition=mask, input=h, other=h.tanh())


def of_numbers(h: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, h, 0.0) + torch.where(mask, 1.0, -2.0) * h


def other_than_one(h: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask * 2, h, h.exp())


def selected(h: Tensor, mask: Tensor) -> Tensor:
    return h * h[mask].sum() + h[mask[:, 0]].mean()


def beside_a_slice(h: Tensor, mask: Tensor) -> Tensor:
    return h * h[mask[:, 0], 1:3].sum()


def of_a_step(h: Tensor, mask: Tensor) -> Tensor:
    """As torchcrf goes on with a score where a sequence has not ended."""
    score = h[:, 0]
    for at in range(1, WIDTH):
        after = torch.logsumexp(torch.stack([score, h[:, at]]), 0)
        score = torch.where(mask[:, at], after, score)
    return score


CASES: dict[str, Case] = {
    one.__name__: one
    for one in (of_two, as_a_method, by_name, of_numbers, other_than_one, selected, beside_a_slice, of_a_step)
}


class Masked(nn.Module):
    """Chooses by a mask of bytes between two layers."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.case, self.layer, self.out = CASES[name], nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        mask = torch.ones_like(h, dtype=torch.uint8) * (x > 0).to(torch.uint8)
        loss: Tensor = (self.out(h) * self.case(h, mask).reshape(len(x), -1)).pow(2).mean()
        return loss


MODELS = {f"{name}_model": partial(Masked, name) for name in CASES}
of_a_step_model = MODELS["of_a_step_model"]


@pytest.mark.parametrize("name", CASES)
def test_what_is_chosen_is_what_eager_chooses(name: str) -> None:
    torch.manual_seed(0)
    model, x = Masked(name).double(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    traced = trace(Masked(name).double(), capture(model, batch=BATCH)).module
    traced.load_state_dict(model.state_dict())
    expected, (found,) = model(x), traced(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    ours, theirs = (
        torch.autograd.grad(loss, list(one.parameters())) for loss, one in ((found, traced), (expected, model))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pins", [{"data": 2, "microbatches": 2}, {"rows": 2}, {"pipeline": 2}], ids=str)
def test_steps_are_those_of_one_device(pins: dict[str, object]) -> None:
    plan = placer.plan(
        f"{__name__}:of_a_step_model", "localx2", batch=BATCH, pins=pins, settings=RunSettings(precision="float64"),
        budget=20,
    )  # fmt: skip
    for found in on_ranks(2, trained, plan):
        assert differences(found, on_one_device(plan)) == []
