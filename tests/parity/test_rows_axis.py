"""Models whose rows mix, of which replicas cannot divide the batch: the devices of one have rows of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from examples.parity.splits import fast_links
from placer import RunSettings
from placer.errors import UsageError
from pool import on_ranks

pytestmark = pytest.mark.in_turns

BATCH = {"x": (8, 6), "y": (8, 6)}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9, learning_rate=0.05)
LAYOUTS: dict[str, dict[str, object]] = {
    "two devices": {"rows": 2, "pipeline": 1},
    "four devices": {"rows": 4, "pipeline": 1},
    "and weights": {"rows": 2, "tensor": 2, "pipeline": 1},
    "and stages": {"rows": 2, "pipeline": 2, "schedule": "1f1b"},
    "and stages, weights apart": {"rows": 2, "pipeline": 2, "schedule": "zero-bubble"},
}


def contrastive(f: Tensor, g: Tensor) -> Tensor:
    """CLIP's: every row of one tower meets every row of the other, and rows are their own labels."""
    scores = functional.normalize(f, dim=-1) @ functional.normalize(g, dim=-1).t() * 5
    own = torch.arange(len(f), device=f.device)
    return (functional.cross_entropy(scores, own) + functional.cross_entropy(scores.t(), own)) / 2


def two_views(f: Tensor, g: Tensor) -> Tensor:
    """SimCLR's: the rows of both one after the other, none with itself."""
    both, rows = functional.normalize(torch.cat([f, g]), dim=1), len(f)
    scores = (both @ both.t()).masked_fill(torch.eye(2 * rows, dtype=torch.bool, device=f.device), -1e9)
    return functional.cross_entropy(scores, torch.cat([torch.arange(rows, 2 * rows), torch.arange(rows)]).to(f.device))


def decorrelated(f: Tensor, g: Tensor) -> Tensor:
    """Barlow Twins': statistics of the batch, and a product over its rows."""
    f, g = ((one - one.mean(0)) / (one.std(0) + 1e-3) for one in (f, g))
    crossed = f.t() @ g / len(f)
    return (crossed - torch.eye(crossed.shape[0], dtype=f.dtype, device=f.device)).square().sum()


def root(f: Tensor, g: Tensor) -> Tensor:
    return functional.mse_loss(f, g).sqrt()


def hardest(f: Tensor, g: Tensor) -> Tensor:
    """The rows with the largest losses."""
    return functional.mse_loss(f, g, reduction="none").mean(1).topk(3).values.mean()


def over_rows(f: Tensor, g: Tensor) -> Tensor:
    return (f.softmax(0) * g.cumsum(0)).sum(0).square().mean()


def neighbours(f: Tensor, g: Tensor) -> Tensor:
    return functional.mse_loss(f[1:], g[:-1]) + functional.mse_loss(f.flip(0), g.roll(1, 0))


def centred(f: Tensor, g: Tensor) -> Tensor:
    """Mixed in the middle, each row for itself behind that."""
    return functional.l1_loss((f - f.mean(0)).tanh(), g)


def written(f: Tensor, g: Tensor) -> Tensor:
    """Numbers are put where a condition of each row holds."""
    f = f * 1
    f[f > 0.1] = 0.1
    return functional.mse_loss(f, g).sqrt()


def windows(f: Tensor, g: Tensor) -> Tensor:
    """Rows taken for time, which a window slides over: these stay together."""
    f = f + functional.avg_pool1d(f.t().unsqueeze(0), 3, stride=1, padding=1).squeeze(0).t()
    return functional.mse_loss(f, g)


def filters(f: Tensor, g: Tensor) -> Tensor:
    """Each row is the filter of its own group."""
    rows = len(f)
    return functional.conv1d(g.reshape(1, rows, 4), f[:, None, :3], groups=rows, padding=1).std()


def halves(f: Tensor, g: Tensor) -> Tensor:
    """An even number of rows, the first half of which are views of the second."""
    first, second = f.chunk(2)
    return functional.mse_loss(first, second) + g.square().mean()


def pairs(f: Tensor, g: Tensor) -> Tensor:
    """Two views of each sample, one after the other."""
    f, g = f.view(-1, 2, 4), g.view(-1, 2, 4)
    return functional.mse_loss(f[:, 0], f[:, 1]) + (g[:, 0] @ g[:, 1].t()).logsumexp(-1).mean()


def sliced(f: Tensor, g: Tensor) -> Tensor:
    """Some of the numbers of all rows, of which devices cannot have equally many."""
    return f.reshape(-1)[3:].mean() + g.std()


MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    one.__name__: one for one in (contrastive, two_views, decorrelated, root, hardest, over_rows, neighbours, centred)
}


class Towers(nn.Module):
    """Two towers, one with a norm over the batch and its running statistics, and a loss that mixes rows."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4))
        self.two = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.one(x), self.two(y))


class Images(nn.Module):
    """Convolutions with norms over the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2),
            nn.BatchNorm2d(6), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.head(self.body(x).mean((2, 3))), y)


globals().update(
    {
        f"with_{one.__name__}": partial(Towers, one)
        for one in (*MIXED.values(), written, windows, filters, halves, pairs, sliced)
    }
)


# Each on four devices, and in one of the other ways.
OTHERS = cycle(name for name in LAYOUTS if name != "four devices")
CASES = [(mixed, layout) for mixed in MIXED for layout in ("four devices", next(OTHERS))]


@pytest.mark.parametrize(("mixed", "layout"), CASES)
def test_rows_that_mix_are_divided_over_the_devices_of_a_replica(mixed: str, layout: str) -> None:
    plan = placer.plan(
        f"{__name__}:with_{mixed}", "localx4", batch=BATCH, pins=LAYOUTS[layout], settings=SETTINGS, budget=50
    )
    assert any(name.startswith(("lead 0", "dim 0", "batch")) for name in choices(plan)), "rows are cut"
    assert not differences(on_ranks(plan.world_size, trained, plan)[0], on_one_device(plan))


@pytest.mark.parametrize("mixed", ["contrastive", "written", "windows", "filters", "sliced"])
def test_where_links_are_fast_more_ops_have_rows_of_their_own(mixed: str) -> None:
    pins = {"rows": 2, "pipeline": 1}
    plan = placer.plan(f"{__name__}:with_{mixed}", fast_links(2), batch=BATCH, pins=pins, settings=SETTINGS)
    assert not differences(on_ranks(plan.world_size, trained, plan)[0], on_one_device(plan))


@pytest.mark.parametrize("rows", [2, 4])
def test_a_norm_over_the_batch_takes_the_rows_of_all_devices(rows: int) -> None:
    pins = {"rows": rows, "pipeline": 1}
    batch = {"x": (8, 3, 9, 9), "y": (8, 5)}
    plan = placer.plan(f"{__name__}:Images", "localx4", batch=batch, pins=pins, settings=SETTINGS)
    assert "batch" in choices(plan), "each device has rows of its own of a norm"
    assert not differences(on_ranks(plan.world_size, trained, plan)[0], on_one_device(plan))


def test_a_batch_that_does_not_divide_is_refused_with_its_numbers() -> None:
    with pytest.raises(UsageError, match="pin rows=3 contradicts the batch of 8 rows: the 3 devices have equally many"):
        placer.plan(f"{__name__}:Images", "localx3", batch={"x": (8, 3, 9, 9), "y": (8, 5)}, pins={"rows": 3})


def test_who_pins_replicas_of_a_batch_that_stays_whole_is_told_of_the_axis() -> None:
    with pytest.raises(UsageError, match="pin rows=2 to give the devices of one replica rows of their own"):
        placer.plan(f"{__name__}:with_root", "localx2", batch=BATCH, pins={"data": 2})


@pytest.mark.parametrize("layout", ["two devices", "and weights"])
@pytest.mark.parametrize("mixed", ["halves", "pairs"])
def test_rows_of_a_model_that_takes_one_number_of_them_alone_are_divided_too(mixed: str, layout: str) -> None:
    pins = LAYOUTS[layout]
    plan = placer.plan(f"{__name__}:with_{mixed}", fast_links(4), batch=BATCH, pins=pins, settings=SETTINGS, budget=50)
    assert "captured for batches of 8 rows alone" in " ".join(plan.assumptions)
    assert "lead 0" in choices(plan), "products have rows of their own"
    assert not differences(on_ranks(plan.world_size, trained, plan)[0], on_one_device(plan))


def choices(plan: placer.Plan) -> set[str]:
    """The names of what the ops of the plan's layouts do, along the first axis."""
    splits = [split for layout in plan.layouts for split in layout.splits if split is not None]
    return {name.partition(" / ")[0] for split in splits for name in split.choices}
