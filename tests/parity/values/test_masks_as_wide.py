"""Masks that are laid out as scores are (`mask.expand_as(scores)`) say how many they are without these: a loss that is
divided by their sum is divided over the pieces of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS, PLACES = 8, 6
BATCH = {"x": (ROWS, PLACES, 4), "y": (ROWS, PLACES, 3), "mask": ((ROWS, PLACES), "int64")}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9)
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"data": 2, "microbatches": 2},
    "stages": {"pipeline": 2, "microbatches": 2},
    "devices that divide ops": {"tensor": 2, "microbatches": 1},
}
WIDENED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "expanded": lambda mask, scores: mask[:, :, None].expand_as(scores),
    "viewed": lambda mask, scores: mask.repeat_interleave(3, 1).view_as(scores),
    "reshaped": lambda mask, scores: mask[:, None].repeat(1, 3, 1).transpose(1, 2).reshape_as(scores),
}


class Regressed(nn.Module):
    """As CenterNet's heads learn: where the mask is, over how much of it there is."""

    def __init__(self, widened: str) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)
        self.widened = widened

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = self.two(torch.tanh(self.one(x)))
        wide = WIDENED[self.widened](mask % 2, scores).to(scores.dtype)
        return ((scores - y).abs() * wide).sum() / (wide.sum() + 1e-4)


globals().update({name: partial(Regressed, name) for name in WIDENED})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("widened", WIDENED)
def test_what_a_mask_counts_does_not_hang_on_the_scores(widened: str, layout: str) -> None:
    plan = placer.plan(
        f"{__name__}:{widened}", "localx2", batch=BATCH, pins=LAYOUTS[layout], settings=SETTINGS, budget=50
    )
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []
