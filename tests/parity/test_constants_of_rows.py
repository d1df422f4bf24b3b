"""Tensors that forward makes of as many equal numbers as the batch has rows: each piece has as many as its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings, tracer
from placer.plans.plan import Plan
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS, TIME, WIDTH = 8, 6, 4
BATCH = {"x": (ROWS, TIME, WIDTH), "y": ((ROWS, 3), "int64")}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9)
Loss = Callable[[Tensor, Tensor], Tensor]


def lengths(scores: Tensor, y: Tensor) -> Tensor:
    """As recognisers of text have it: every row is as long as the longest."""
    given = torch.IntTensor([scores.shape[1]] * scores.shape[0])
    told = torch.tensor([2] * len(y), device=y.device)
    return functional.ctc_loss(scores.log_softmax(-1).transpose(0, 1), y % 3 + 1, given, told, zero_infinity=True)


def weights(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.pow(2).mean((1, 2)) * torch.tensor([0.5] * len(y), dtype=scores.dtype)).sum()


def of_the_device(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.pow(2).mean((1, 2)) * scores.new_tensor([0.5] * len(y))).mean()


def positions(scores: Tensor, y: Tensor) -> Tensor:
    """As SASRec counts them, by numpy."""
    tiled = torch.from_numpy(np.tile(np.arange(TIME), [len(scores), 1]))
    return (scores * tiled[:, :, None].to(scores.dtype)).pow(2).mean()


def behind(scores: Tensor, y: Tensor) -> Tensor:
    """Rows in the second dim."""
    table = torch.tensor([[step / TIME] * len(y) for step in range(TIME)], dtype=scores.dtype)
    return (scores.transpose(0, 1) * table[:, :, None]).pow(2).mean()


def pairs(scores: Tensor, y: Tensor) -> Tensor:
    """Two of each row, and a table of as many numbers as a batch of three rows has."""
    table = torch.tensor([0.5, 0.5, 0.5], dtype=scores.dtype, device=scores.device)
    halves = torch.tensor([0.25] * (2 * len(y)), dtype=scores.dtype, device=scores.device)
    return (scores.reshape(2 * len(y), -1) * halves[:, None]).pow(2).mean() * table.sum()


def numbered(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.pow(2).mean((1, 2)) * torch.tensor([float(row) for row in range(len(y))]).to(scores)).mean()


def counted(scores: Tensor, y: Tensor) -> Tensor:
    return scores.pow(2).sum() / torch.tensor(float(len(y)), device=scores.device).exp()


def capped(scores: Tensor, y: Tensor) -> Tensor:
    """As many as there are rows, up to six."""
    return scores.pow(2).sum() / torch.tensor([1.0] * min(len(y), 6)).to(scores).sum()


def even(scores: Tensor, y: Tensor) -> Tensor:
    """As many as there are pairs of rows, twice."""
    return scores.pow(2).sum() / torch.tensor([1.0] * (len(y) // 2 * 2)).to(scores).sum()


ALIKE: dict[str, Loss] = {one.__name__: one for one in (lengths, weights, of_the_device, positions, behind, pairs)}
OTHERS: dict[str, Loss] = {one.__name__: one for one in (numbered, counted, capped, even)}
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"data": 2, "microbatches": 2},
    "stages": {"pipeline": 2, "microbatches": 2},
    "devices that divide ops": {"tensor": 2, "microbatches": 1},
}


class Scored(nn.Module):
    """Two layers, and a loss of their scores."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 8), nn.Linear(8, 5)
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (ALIKE | OTHERS)[self.loss](self.two(torch.tanh(self.one(x))), y)


globals().update({f"with_{name}": partial(Scored, name) for name in ALIKE | OTHERS})


@cache
def plan_of(loss: str, layout: str) -> Plan:
    """The model with that loss so laid out."""
    return placer.plan(
        f"{__name__}:with_{loss}", "localx2", batch=BATCH, pins=LAYOUTS[layout], settings=SETTINGS, budget=50
    )


@pytest.mark.parametrize("layout", ["replicas", "stages"])
@pytest.mark.parametrize("loss", ALIKE)
def test_equal_numbers_for_each_row_are_those_of_the_pieces(loss: str, layout: str) -> None:
    plan = plan_of(loss, layout)
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("loss", OTHERS)
def test_other_numbers_for_each_row_are_those_of_the_batch_which_stays_whole(loss: str) -> None:
    with pytest.raises(placer.PlacerError, match=r"(?s)a constant tensor of the number of rows that aten.*_of_rows.py"):
        plan_of(loss, "replicas")
    plan = plan_of(loss, "devices that divide ops")
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("loss", ALIKE)
@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_a_graph_has_as_many_as_there_are_rows(loss: str, rows: int) -> None:
    model = Scored(loss).double()
    traced = tracer.trace(model, {"x": torch.zeros(ROWS, TIME, WIDTH).double(), "y": torch.zeros(ROWS, 3).long()})
    x, y = torch.randn(rows, TIME, WIDTH).double(), torch.randint(5, (rows, 3))
    torch.testing.assert_close(traced.module(x, y)[0], model(x, y), rtol=1e-12, atol=0)
