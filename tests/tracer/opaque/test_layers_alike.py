"""Parts that stand in the same place of several layers, and that no export looks into: they are found together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opaque_models import WIDTH, Between, Router
from placer.graph import Graph
from placer.tracer import capture, capturing, trace

pytestmark = pytest.mark.in_turns

BATCH = {"x": (6, WIDTH)}


class Layer(nn.Module):
    """A router behind a layer."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.before, self.router = nn.Linear(WIDTH, WIDTH), router

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.router(torch.tanh(self.before(x)))
        return made


class Sizes(Router):
    """Has the sizes that it is for in a list; where there are none an export sees no branch, and what it is tried on
    is too small for it."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = [*sizes]

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        if self.sizes:
            return super().forward(x, scale)
        if not (torch.compiler.is_exporting() or x.is_meta) and float(x.abs().max()) < 2:
            raise RuntimeError("too small")
        made: torch.Tensor = self.one(x)
        return made


def layers(*routers: nn.Module) -> nn.Module:
    return Between(nn.Sequential(*map(Layer, routers)))


def opaque(graph: Graph) -> list[str]:
    return [note.partition(" cannot be exported")[0] for note in graph.notes if "one opaque op" in note]


def test_an_export_finds_the_parts_of_all_layers_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, before = [0], capturing.captured

    def captured(source: capturing.Source, fold: bool) -> capturing.Captured:
        tried[0] += 1
        return before(source, fold)

    monkeypatch.setattr(capturing, "captured", captured)
    model = layers(*(Router() for _ in range(4)))
    graph = capture(model, batch=BATCH)
    assert opaque(graph) == [f"part.{number}.router" for number in range(4)]
    assert tried == [2]
    x = torch.randn(6, WIDTH)
    assert torch.equal(trace(model, graph).module(x)[0], model(x))


def test_a_part_that_is_not_made_alike_is_looked_into() -> None:
    assert opaque(capture(layers(Router(), nn.Linear(WIDTH, WIDTH), Router()), batch=BATCH)) == [
        "part.0.router",
        "part.2.router",
    ]


def test_a_part_that_does_not_run_by_itself_is_looked_into_all_the_same() -> None:
    assert opaque(capture(layers(Sizes(1), Sizes(), Sizes(2)), batch=BATCH)) == ["part.0.router", "part.2.router"]
