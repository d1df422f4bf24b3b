"""Writes into what was detached: it has the gradient of what is written, and what it was detached from has none of it,
as in eager, or the write is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from placer.errors import UncapturableError
from placer.tracer import capture, trace

pytestmark = pytest.mark.in_turns

ROWS, LENGTH, WIDTH = 6, 5, 4
SHAPE = (ROWS, LENGTH, WIDTH)


class Holder(nn.Module):
    """A token that is written into what `way` makes of the batch, or of what has a gradient."""

    def __init__(self, way: Callable[[Holder, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.last = nn.Linear(WIDTH, 1)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.last(self.way(self, x, x[..., 0] > 0)).square().mean()
        return loss


def masked(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    """As masked patch prediction puts its token."""
    h = x.clone().detach()
    h[mask] = holder.token
    return h


def column(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h: Tensor = (2 * x).data
    h[:, 0] = holder.token[0]
    return h


def added(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = (2 * x).detach()
    h += holder.token
    return h


def filled_then_added(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = x.clone().detach()
    h.masked_fill_(mask[..., None], 0.0)
    h.add_(holder.token)
    return h


def of_trained(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h: Tensor = (holder.last(x) * x).clone().detach()
    h[mask] = holder.token
    return h


def of_made(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y = torch.zeros(SHAPE, dtype=x.dtype, device=x.device)
    h = y.detach()
    h[mask] = holder.token
    return h * 2 + y


def of_the_batch(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = x.detach()
    h[mask] = holder.token
    return h


def beside_a_product_that_is_a_view(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y, h = torch.zeros_like(x), x.clone().detach()
    turned = torch.einsum("bij->bji", y)
    h[mask] = holder.token
    y[:, 1] = holder.token[0]
    return h + turned.transpose(1, 2)


def base_read(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    h = y.detach()
    h[mask] = holder.token
    return h + y


def view_of_base_read(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    part, h = y[1], y.detach()
    h[mask] = holder.token
    return h + part


def other_side_read(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    h, other = y.detach(), y.detach()
    h[mask] = holder.token
    return h + other


def twice_detached(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = x.clone().detach()
    g = h.detach()
    g[mask] = holder.token
    return h + 2 * g


def through_views(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = x.clone().detach()
    h[mask] = holder.token
    h[:, 2].mul_(3.0)
    part = h[0]
    h[0, 1] = holder.token[0, 0]
    return h + part


def detached_once_more(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y: Tensor = x.clone().detach()
    y += holder.token
    y = y.detach()
    y[:, 0] = holder.token[0]
    return y * 2


def without_then_with(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    h = y.detach()
    h[:, 0] = 0.0
    y[mask] = holder.token
    return h + y


def without_gradients_then_with(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = x.clone()
    with torch.no_grad():
        h[:, 0] = holder.last(x)[:, 0]
    h[mask] = holder.token
    return h + h.detach()


def read_without_gradients(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h[mask] = holder.token
    with torch.no_grad():
        twice = h * 2
    return h + twice


EQUAL = [
    masked, column, added, filled_then_added, of_trained, of_made, of_the_batch, base_read, view_of_base_read,
    beside_a_product_that_is_a_view,
    other_side_read, twice_detached, through_views, detached_once_more, without_then_with, without_gradients_then_with,
    read_without_gradients,
]  # fmt: skip


@pytest.mark.parametrize("way", EQUAL, ids=lambda way: way.__name__)
def test_each_side_has_the_gradient_that_eager_gives_it(way: Callable[[Holder, Tensor, Tensor], Tensor]) -> None:
    model = Holder(way).double()
    x = torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    made = trace(model, capture(model, batch={"x": (SHAPE, "float64")})).module(x.clone())
    weights, expected = dict(model.named_parameters()), model(x)
    torch.testing.assert_close(made[0] if isinstance(made, tuple) else made, expected)
    found = torch.autograd.grad(made[0] if isinstance(made, tuple) else made, list(weights.values()))
    for own, other in zip(found, torch.autograd.grad(expected, list(weights.values())), strict=True):
        torch.testing.assert_close(own, other)


def written_beside(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h[mask] = holder.token
    h.detach()[:, 0] = 0.0
    return h


def written_without_gradients(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h[mask] = holder.token
    with torch.no_grad():
        h[:, 0] = 0.0
    return h


def base_of_trained_read(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y: Tensor = holder.last(x) * x
    h = y.detach()
    h[mask] = holder.token
    return h + y


def base_written_after(holder: Holder, x: Tensor, mask: Tensor) -> Tensor:
    y = x.clone()
    h = y.detach()
    h[mask] = holder.token
    y[:, 1] = 0.0
    return h * 2


@pytest.mark.parametrize(
    "way, reason",
    [
        (written_beside, "writes without a gradient into a value that has one"),
        (written_without_gradients, "writes without a gradient into a value that has one"),
        (base_of_trained_read, "writes without a gradient into a value that has one"),
        (base_written_after, "reads what was detached, written with a gradient, and then written apart from that"),
    ],
)
def test_what_no_values_stand_for_is_refused_with_its_line(
    way: Callable[[Holder, Tensor, Tensor], Tensor], reason: str
) -> None:
    with pytest.raises(UncapturableError, match=reason) as caught:
        capture(Holder(way).double(), batch={"x": (SHAPE, "float64")})
    assert "test_detached_writes.py:" in str(caught.value)
