"""Calls of modules that raise, which forward catches, as in eager: `try: layer(x, lengths=n)`, `except TypeError:`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from placer.errors import CaptureError
from placer.tracer import capture, trace

pytestmark = pytest.mark.in_turns

ROWS, WIDTH = 8, 6
BATCH = {"x": ((ROWS, WIDTH), "float64"), "n": ((ROWS,), "float64")}


class Weighed(nn.Module):
    """A layer that takes lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) * lengths[:, None]


class Layers(nn.Module):
    """As speechbrain goes through layers of which some take lengths."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Weighed(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), Weighed()])

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        for layer in self.layers:
            try:
                x = layer(x, lengths=n)
            except TypeError:
                x = layer(x)
        return x.pow(2).mean()


class Doubling(nn.Module):
    """Writes into what it is given, then raises."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        raise KeyError("no")


class Deep(nn.Module):
    """What a call did before it raised stays done; it raises two modules deep."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.doubling, self.second = nn.Linear(WIDTH, WIDTH), nn.Sequential(Doubling()), Weighed()

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        h = self.first(x) * 1.0
        try:
            self.doubling(h)
        except KeyError:
            h = self.second(h, n)
        return functional.softplus(h).mean()


class Squeezing(nn.Module):
    """An op that raises, not a module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), Weighed()

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        h: Tensor = self.first(x)
        try:
            h = torch.tanh(h)[:, :, None].squeeze(5)
        except IndexError:
            h = self.second(h, n)
        return h.square().mean()


class Adding(Squeezing):
    """What was written before it raised stays written."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        h: Tensor = self.first(x) * 1.0
        try:
            h.mul_(2)
            h.add_(torch.zeros(WIDTH + 1, dtype=h.dtype, device=h.device))
        except RuntimeError:
            h = self.second(h, n)
        return h.square().mean()


class ByValues(Weighed):
    """What an export cannot look into is not taken for what the model catches."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        h: Tensor = self.layer(x)
        return h if h.sum() < 1e9 else -h


class Hidden(nn.Module):
    """Catches whatever is raised."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = ByValues(), Weighed()

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        try:
            h: Tensor = self.one(x, n)
        except Exception:
            h = self.other(x, n)
        return h.mean()


@pytest.mark.parametrize("kind", [Layers, Deep, Squeezing, Adding])
def test_a_call_that_raises_is_left_as_in_eager(kind: type[nn.Module]) -> None:
    model = kind().double()
    batch = {each: torch.randn(shape, dtype=torch.float64) for each, (shape, _) in BATCH.items()}
    traced = trace(kind().double(), capture(model, batch=batch)).module
    expected, (found,) = model(**batch), traced(*batch.values())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    mine, weights = dict(model.named_parameters()), dict(traced.named_parameters())
    assert weights.keys() == mine.keys()
    ours = torch.autograd.grad(found, list(weights.values()))
    theirs = torch.autograd.grad(expected, [mine[each] for each in weights])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_its_layers_are_the_models() -> None:
    assert [block.name for block in capture(Layers().double(), batch=BATCH).blocks] == [
        f"layers.{at}" for at in range(4)
    ]


def test_what_an_export_alone_raises_is_not_taken_for_what_is_caught() -> None:
    with pytest.raises(CaptureError, match=r"test_caught_calls\.py"):
        capture(Hidden().double(), batch=BATCH)
