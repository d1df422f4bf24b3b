"""Parts that are not looked into and are called in more ways than one: the part around them is, or the rows stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opaque_models import WIDTH, Between, Router
from placer.graph import Graph
from placer.tracer import capture, trace

pytestmark = pytest.mark.in_turns

BATCH = {"x": (6, WIDTH)}


class Twice(nn.Module):
    """A router that is called in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.router(x) + self.router(x, scale=2.0)
        return made


class Packed(nn.Module):
    """Takes rows one by one, and begins with the most of what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: list[torch.Tensor]) -> torch.Tensor:
        longest = int(torch.stack([(row > 0).sum() for row in rows]).max())
        made: torch.Tensor = self.layer(torch.stack(rows)[:, : max(longest, 1)].mean(1, keepdim=True).expand(-1, WIDTH))
        return made


class Listed(nn.Module):
    """Gives a part the list of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.last = Packed(), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.last(self.packed(list(x))).square().mean()
        return loss


def opaque(graph: Graph) -> list[str]:
    return [note.partition(" cannot be exported")[0] for note in graph.notes if "one opaque op" in note]


def same(model: nn.Module, graph: Graph) -> bool:
    x = torch.randn(6, WIDTH)
    return torch.equal(trace(model, graph).module(x)[0], model(x))


def test_of_a_part_that_is_called_in_two_ways_the_one_around_it_is_opaque() -> None:
    model = Between(Twice())
    graph = capture(model, batch=BATCH)
    assert opaque(graph) == ["part"]
    assert same(model, graph)


def test_a_part_that_is_given_a_list_of_rows_is_captured_for_as_many() -> None:
    model = Listed()
    graph = capture(model, batch=BATCH)
    assert opaque(graph) == ["packed"]
    assert graph.loss.reduction == "other"
    assert any("for batches of 6 rows alone: with other numbers of them packed is called" in one for one in graph.notes)
    assert same(model, graph)
