"""Of opaque parts that may mix rows all are named in what to write, where none does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placer.rules import OpaqueCost
from placer.tracer import capture

pytestmark = pytest.mark.in_turns

WIDTH = 4
BATCH = {"x": (8, WIDTH)}


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of as many numbers."""
        made: Tensor = torch.tanh(self.part(x))
        return made


class _Layers(nn.Module):
    """As many layers in a list, and one beside it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(_Layer() for _ in range(count)), _Layer()

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        for layer in self.layers:
            x = layer(x)
        made: Tensor = self.last(x)
        return made.pow(2).mean()


@pytest.mark.parametrize(
    ("names", "beginning", "costs"),
    [
        (["last.part"], "last.part is opaque", "opaque={'last.part': OpaqueCost(rows_apart=True)}"),
        (
            ["layers.0.part", "last.part"],
            "layers.0.part, and 1 more part, are opaque",
            "opaque=dict.fromkeys(['layers.0.part', 'last.part'], OpaqueCost(rows_apart=True))",
        ),
        (
            ["layers.1.part", "layers.2.part", "layers.3.part"],
            "layers.1.part, and 2 more parts, are opaque",
            'opaque=dict.fromkeys([f"layers.{i}.part" for i in range(1, 4)], OpaqueCost(rows_apart=True))',
        ),
    ],
)
def test_what_to_write_of_parts_that_keep_rows_apart_names_all(names: list[str], beginning: str, costs: str) -> None:
    why = capture(_Layers(4), batch=BATCH, opaque=names).loss.why
    assert why.startswith(beginning)
    assert costs in why
    said = eval(costs.removeprefix("opaque="), {"OpaqueCost": OpaqueCost})
    assert capture(_Layers(4), batch=BATCH, opaque=said).loss.reduction == "sum"
