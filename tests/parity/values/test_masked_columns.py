"""Columns that one mask takes of every row are written with the row's own values: `result[:, learnt] = update`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings
from pool import on_ranks

pytestmark = pytest.mark.in_turns

BATCH = {"x": (8, 4), "y": (8, 6)}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9)
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"data": 2, "microbatches": 2},
    "stages": {"pipeline": 2, "microbatches": 2},
}
LEARNT = (True, False, True, True, False, False)


def own(h: Tensor, mask: Tensor) -> Tensor:
    """As loralib pads what it merges."""
    made = h.new_zeros(h.shape)
    made[:, mask] = h[:, :3]
    return made


def number(h: Tensor, mask: Tensor) -> Tensor:
    made = h * 1
    made[:, mask] = 0.5
    return made


def behind(h: Tensor, mask: Tensor) -> Tensor:
    made = torch.stack([h, h * 2], 1)
    made[:, :, mask] = h[:, None, 3:].expand(-1, 2, -1)
    return made.sum(1)


def of_none(h: Tensor, mask: Tensor) -> Tensor:
    """Rows are the columns of what is masked."""
    made = h.t() * 1
    made[mask] = h.t()[:3] * 2
    return made.t()


WRITTEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {one.__name__: one for one in (own, number, behind)}


class Masked(nn.Module):
    """Two layers, between which columns are written."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 6)
        self.write = write
        self.register_buffer("mask", torch.tensor(LEARNT))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(self.mask, Tensor)
        return functional.mse_loss(self.two(self.write(self.one(x), self.mask)), y)


globals().update({f"with_{name}": partial(Masked, one) for name, one in WRITTEN.items()})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("written", WRITTEN)
def test_columns_of_each_row_are_written_apart(written: str, layout: str) -> None:
    plan = placer.plan(
        f"{__name__}:with_{written}", "localx2", batch=BATCH, pins=LAYOUTS[layout], settings=SETTINGS, budget=50
    )
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


def test_rows_that_are_the_columns_of_what_is_written_are_not() -> None:
    with pytest.raises(placer.PlacerError, match=r"aten.index_put_.* takes rows of the batch together"):
        placer.plan(Masked(of_none), "localx2", batch=BATCH, pins={"data": 2}, settings=SETTINGS)
