"""The square of the norm of all numbers (`users.norm(2).pow(2)`) is a sum of squares, to which rows add their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings, tracer
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS = 8
BATCH = {"users": ((ROWS,), "int64"), "y": (ROWS, 4)}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9)
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"data": 2, "microbatches": 2},
    "stages": {"pipeline": 2, "microbatches": 2},
    "devices that divide ops": {"tensor": 2, "microbatches": 1},
}


def multiplied(h: Tensor) -> Tensor:
    norm: Tensor = h.norm()
    return norm * norm


PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "by_pow": lambda h: h.norm(2).pow(2),
    "by_power": lambda h: torch.norm(h) ** 2,
    "by_square": lambda h: torch.linalg.vector_norm(h).square(),
    "by_product": multiplied,
    "of_zeros": lambda h: (h * 0).norm() ** 2,
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "not_squared": lambda h: h.norm(),
    "cubed": lambda h: h.norm() ** 3,
    "of_order_one": lambda h: h.norm(1) ** 2,
    "of_both": lambda h: h.norm() ** 2 + h.norm(),
}


class Penalised(nn.Module):
    """As LightGCN penalises the embeddings of a batch."""

    def __init__(self, penalty: str) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(1000, 4), nn.Linear(4, 4)
        self.penalty = penalty

    def forward(self, users: Tensor, y: Tensor) -> Tensor:
        h = self.table(users)
        penalty = (PENALTIES | OTHERS)[self.penalty](h) / float(len(users))
        return functional.mse_loss(self.out(h), y) + 0.1 * penalty


globals().update({name: partial(Penalised, name) for name in PENALTIES | OTHERS})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_squared_norm_is_divided_over_the_rows(penalty: str, layout: str) -> None:
    plan = placer.plan(
        f"{__name__}:{penalty}", "localx2", batch=BATCH, pins=LAYOUTS[layout], settings=SETTINGS, budget=50
    )
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("penalty", OTHERS)
def test_other_norms_keep_the_batch_whole(penalty: str) -> None:
    with pytest.raises(placer.PlacerError, match=r"aten.linalg_vector_norm.* takes rows of the batch together"):
        placer.plan(f"{__name__}:{penalty}", "localx2", batch=BATCH, pins={"data": 2}, settings=SETTINGS)


def test_norms_of_weights_are_left() -> None:
    class Decayed(Penalised):
        def forward(self, users: Tensor, y: Tensor) -> Tensor:
            decay: Tensor = self.out.weight.norm() ** 2
            return super().forward(users, y) + decay

    names = [op.target for _, op in tracer.capture(Decayed("by_pow"), batch=BATCH).ops]
    assert sum("vector_norm" in name for name in names) == 1
