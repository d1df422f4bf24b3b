"""Gradients of 16 bits lose nothing where many of them are summed: of microbatches, replicas, stages that share a
weight. All rows are alike here, so that the gradient of any of them is the gradient of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import placer
from examples.parity.processes import processes
from examples.parity.zoo.eager import Numbers
from examples.parity.zoo.judged import run_on_rank
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS = 256
#: Half the distance of neighbours in bfloat16, of which every product and sum of the model itself may be off.
ROUNDED = 2.0**-8


class Shared(nn.Module):
    """A layer that is used at both ends, and a table that lies column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.ends, self.middle, self.shift = nn.Linear(16, 16), nn.Linear(16, 16), nn.Parameter(torch.tensor(0.25))
        self.table = nn.Parameter((torch.randn(16, 6) * 0.3).t())

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss."""
        looked_up = torch.tanh(x @ self.table.t()) @ self.table
        between = self.middle(torch.tanh(self.ends(x) + looked_up)) + self.shift
        return nn.functional.cross_entropy(self.ends(torch.tanh(between)), y)


def alike() -> dict[str, torch.Tensor]:
    row = torch.randn(1, 16, generator=torch.Generator().manual_seed(3), dtype=torch.bfloat16)
    return {"x": row.expand(ROWS, 16).clone(), "y": torch.full((ROWS,), 5)}


def plan_of(ranks: int, rows: int, *pins: str, precision: str = "bfloat16") -> Plan:
    shapes = {"x": torch.zeros(ROWS, 16), "y": torch.zeros(ROWS, dtype=torch.int64)}
    settings = RunSettings(optimizer="sgd", clip_norm=None, precision=precision)  # type: ignore[arg-type]
    plan = placer.plan(
        "test_sums_of_many:Shared", processes(ranks), batch=shapes, settings=settings, pins=pins, strategy="auto"
    )
    return replace(plan, microbatches=(rows,) * (ROWS // rows))


LAYOUTS = [
    (1, 1, ()),
    (2, 2, ("data=2", "pipeline=1", "shard=none")),
    (2, 2, ("data=2", "pipeline=1", "shard=optimizer")),
    (2, 2, ("data=2", "pipeline=1", "shard=gradients")),
    (2, 2, ("data=2", "pipeline=1", "shard=parameters")),
    (2, 2, ("pipeline=2", "data=1", "schedule=1f1b")),
    (2, 2, ("pipeline=2", "data=1", "schedule=zero-bubble")),
    (2, 2, ("tensor=2", "data=1", "pipeline=1")),
    (4, 2, ("data=2", "pipeline=2", "schedule=gpipe")),
    (4, ROWS, ("data=4", "pipeline=1", "shard=none")),
]


@pytest.mark.parametrize(
    ("layout", "precision"),
    [*((one, "bfloat16") for one in LAYOUTS), *((one, "float16") for one in LAYOUTS[:2])],
    ids=str,
)
def test_the_gradient_of_many_alike_rows_is_that_of_one(
    layout: tuple[int, int, tuple[str, ...]], precision: str
) -> None:
    ranks, rows, pins = layout
    plan = plan_of(ranks, rows, *pins, precision=precision)
    batch = {name: tensor.to(getattr(torch, precision)) if tensor.is_floating_point() else tensor
             for name, tensor in alike().items()}  # fmt: skip
    found = on_ranks(ranks, run_on_rank, plan, [batch], True)[0]
    assert isinstance(found, Numbers), found
    expected = of_one_row(found.before, batch)
    summed = expected["middle.bias"]
    for name, gradient in expected.items():
        own = found.gradients[0][name].float()
        # One number is the sum of others, which cancel each other.
        terms = summed if name == "shift" else gradient
        assert (own - gradient).norm() <= 2 * ROUNDED * terms.norm(), name


def of_one_row(state: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients that eager torch gives one row."""
    model = Shared().to(batch["x"].dtype)
    model.load_state_dict(state)
    torch.autograd.backward(model(batch["x"][:1], batch["y"][:1]))
    return {name: one.grad.float() for name, one in model.named_parameters() if one.grad is not None}
