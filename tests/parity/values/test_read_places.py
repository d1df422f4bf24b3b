"""Places that forward reads of tensors (`table[best]`, `lags[:, top[0]]`, `roll(h, -int(lag))`): as in eager."""

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
from placer.errors import CaptureError
from placer.tracer import capture, trace
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS, WIDTH = 8, 6
BATCH = {"x": ((ROWS, WIDTH), "float64"), "y": ((ROWS, WIDTH), "float64")}
Case = Callable[["Placed", Tensor], Tensor]


def of_a_buffer(m: Placed, h: Tensor) -> Tensor:
    return m.table[m.place]


def of_the_best(m: Placed, h: Tensor) -> Tensor:
    return m.table[m.table.sum(1).argmax()]


def from_the_end(m: Placed, h: Tensor) -> Tensor:
    return m.table[:, m.places[0]]


def beside_slices(m: Placed, h: Tensor) -> Tensor:
    return m.table[None, m.place, ..., 2:].sum() + m.table[..., m.places[2]].sum() + m.table[1, m.place]


def two_of_them(m: Placed, h: Tensor) -> Tensor:
    return m.table[m.place, m.places[1]]


def by_number(m: Placed, h: Tensor) -> Tensor:
    return m.table[int(m.place)] + m.table.select(0, int(m.places[1])) + m.table[3 - int(m.place)]


def lagging(m: Placed, h: Tensor) -> Tensor:
    """As Autoformer adds up delays, weighted."""
    means = functional.softmax(h.mean(0), 0)
    top = torch.topk(h.mean(0), 2)[1]
    return torch.stack([torch.roll(h, -int(top[at]), 1) * means[top[at]] for at in range(2)]).sum(0)


def of_a_row(m: Placed, h: Tensor) -> Tensor:
    return h[m.place]


RIGHT: dict[str, Case] = {
    one.__name__: one
    for one in (of_a_buffer, of_the_best, from_the_end, beside_slices, two_of_them, by_number, lagging, of_a_row)
}


def written_into(m: Placed, h: Tensor) -> Tensor:
    row = h[:, m.place]
    row.mul_(2)
    return h


def written_later(m: Placed, h: Tensor) -> Tensor:
    row = h[:, m.place]
    h.mul_(2)
    return row.sum() + h


def assigned(m: Placed, h: Tensor) -> Tensor:
    h[:, m.place] = 2.0
    return h


def cut(m: Placed, h: Tensor) -> Tensor:
    return h[:, : m.place].sum()


def caught(m: Placed, h: Tensor) -> Tensor:
    try:
        return m.table[int(m.place)]
    except IndexError:
        return h


REFUSED: dict[str, Case] = {one.__name__: one for one in (written_into, written_later, assigned, cut, caught)}


class Placed(nn.Module):
    """A layer, and what a case adds to what it gives."""

    place: Tensor
    places: Tensor

    def __init__(self, case: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table, self.case = nn.Parameter(torch.randn(WIDTH, WIDTH)), (RIGHT | REFUSED)[case]
        self.register_buffer("place", torch.tensor(2))
        self.register_buffer("places", torch.tensor([-1, 0, 3]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.layer(x)
        return functional.mse_loss(self.out(h + self.case(self, h)), y)


globals().update({f"{name}_model": partial(Placed, name) for name in RIGHT})


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_picked_is_what_eager_picks(name: str) -> None:
    model = Placed(name).double()
    batch = {each: torch.randn(shape, dtype=torch.float64) for each, (shape, _) in BATCH.items()}
    traced = trace(Placed(name).double(), capture(model, batch=batch)).module
    expected, (found,) = model(**batch), traced(*batch.values())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    weights, mine = dict(traced.named_parameters()), dict(model.named_parameters())
    ours = torch.autograd.grad(found, list(weights.values()))
    theirs = torch.autograd.grad(expected, [mine[each] for each in weights])
    assert {"layer.weight", "out.weight"} <= weights.keys()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_written_there_or_hangs_on_values_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match=r"forward writes into what a number|test_read_places\.py"):
        capture(Placed(name).double(), batch=BATCH)


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("beside_slices", {"data": 2, "microbatches": 2}),
        ("lagging", {"tensor": 2}),
        ("of_a_row", {"pipeline": 2}),
        ("of_a_row", {"rows": 2}),
    ],
)
def test_steps_are_those_of_one_device(name: str, pins: dict[str, object]) -> None:
    settings = RunSettings(precision="float64")
    plan = placer.plan(f"{__name__}:{name}_model", "localx2", batch=BATCH, pins=pins, settings=settings, budget=20)
    for found in on_ranks(2, trained, plan):
        assert differences(found, on_one_device(plan)) == []


@pytest.mark.parametrize("name", ["lagging", "of_a_row"])
def test_a_place_among_the_rows_or_of_all_of_them_keeps_the_batch_whole(name: str) -> None:
    with pytest.raises(placer.PlacerError, match=r"whose batch may not be divided"):
        placer.plan(f"{__name__}:{name}_model", "localx2", batch=BATCH, pins={"data": 2}, budget=20)
