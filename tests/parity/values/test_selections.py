"""What masks select and models sum, average or take losses of: as in eager, or it is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from selecting_models import by_one_mask, columns_seen, columns_set, first_set
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings
from placer.errors import CaptureError
from placer.plans.plan import Plan
from placer.tracer.capturing import capture
from placer.tracer.selections.answers import answered
from placer.tracer.selections.mode import Selections
from placer.tracer.selections.products import Products
from placer.tracer.selections.selected import SelectionError
from pool import on_ranks

CLASSES, WIDTH = 7, 5
Given = tuple[Tensor, Tensor, Tensor, Tensor]


class Weights(nn.Module):
    """Of the functions that are tried."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.norm, self.table = nn.Linear(WIDTH, CLASSES), nn.LayerNorm(WIDTH), nn.Embedding(CLASSES, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES))
        self.scale = nn.Parameter(torch.rand(CLASSES))


def written(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Rows that are written back, and added to."""
    out = torch.zeros_like(x)
    out[mask] = x[mask].exp()
    out[mask] += y[mask]
    return (out * y).sum()


def given_alike(x: Tensor, y: Tensor, mask: Tensor, weights: Weights) -> Tensor:
    """Rows that are all given one vector."""
    x[torch.where(mask)] = next(weights.inner.parameters())[0]
    y[mask.nonzero(as_tuple=True)] = weights.scale[0]
    return (x * y).tanh().pow(2).sum()


def in_place(x: Tensor, mask: Tensor) -> Tensor:
    """A selection that is written into."""
    chosen = x[mask] * 1
    same = chosen
    chosen += 1
    chosen.mul_(2)
    return same.pow(2).mean()


def added(chosen: Tensor, others: Tensor) -> Tensor:
    """A number of rows that becomes another."""
    count = chosen.shape[0]
    count += others.shape[0]
    return (chosen.sum() + others.sum()) / count + chosen.pow(2).mean()


def over_count(total: Tensor, chosen: Tensor) -> Tensor:
    """A mean of numbers."""
    total /= chosen.shape[0]
    total.mul_(chosen.shape[0] + 2)
    return total


def average(total: Tensor, count: object) -> Tensor:
    """By what it is that counts."""
    return total / count if isinstance(count, int) else total


def matched(chosen: object) -> Tensor:
    """By what it is."""
    match chosen:
        case Tensor():
            return chosen.mean()
    return torch.zeros(())


def caught(chosen: Tensor) -> Tensor:
    """What is made of it where it cannot be done."""
    try:
        return chosen.median()
    except RuntimeError:
        return chosen.mean()


def shifted(x: Tensor, mask: Tensor) -> Tensor:
    """What lies one before each place."""
    rows, columns = torch.where(mask)
    columns -= 1
    return x[rows, columns].mean()


Case = Callable[[Weights, Tensor, Tensor, Tensor, Tensor], Tensor]
# Of weights, two tables (4, 6, WIDTH), classes and a mask (4, 6).
RIGHT: dict[str, Case] = {
    "mean": lambda w, x, y, c, m: x[m].mean(),
    "mean over rows": lambda w, x, y, c, m: x[m].mean(0).pow(2).sum() + x[m].mean(dim=(0, 1)) ** 2,
    "mean of each": lambda w, x, y, c, m: x[m].mean(-1).pow(2).sum(),
    "cross entropy": lambda w, x, y, c, m: functional.cross_entropy(w.head(x)[m], c[m]),
    "mask made twice": lambda w, x, y, c, m: functional.cross_entropy(w.head(x)[c != 3], c[c != 3]),
    "flat mask": lambda w, x, y, c, m: functional.cross_entropy(
        w.head(x).view(-1, CLASSES)[c.view(-1) != 3], c.view(-1)[c.view(-1) != 3]
    ),
    "weights of classes": lambda w, x, y, c, m: functional.cross_entropy(
        w.head(x)[m], c[m], weight=torch.arange(1.0, CLASSES + 1), label_smoothing=0.1, ignore_index=2
    ),
    "soft classes": lambda w, x, y, c, m: functional.cross_entropy(w.head(x)[m], w.head(y)[m].softmax(-1)),
    "focal": lambda w, x, y, c, m: (
        lambda each: ((1 - torch.exp(-each)) ** 2 * each).mean()
    )(functional.cross_entropy(w.head(x)[m], c[m], reduction="none")),
    "head of the selected": lambda w, x, y, c, m: functional.cross_entropy(w.inner(w.norm(x[m])), c[m]),
    "squares": lambda w, x, y, c, m: (
        functional.mse_loss(x[m], y[m]) + functional.smooth_l1_loss(x[m], y[m], reduction="sum")
    ),
    "probabilities": lambda w, x, y, c, m: functional.binary_cross_entropy(x[m].sigmoid(), (y[m] > 0).double()),
    "divergence": lambda w, x, y, c, m: functional.kl_div(
        x[m].log_softmax(-1), y[m].softmax(-1), reduction="batchmean"
    ),
    "masked_select": lambda w, x, y, c, m: (
        x.masked_select(m.unsqueeze(-1)).mean() + torch.masked_select(y, y > 0).sum()
    ),
    "selected of the selected": lambda w, x, y, c, m: (lambda each: each[each > 0.3].mean())(((x - y) ** 2).sum(-1)[m]),
    "roots of nothing": lambda w, x, y, c, m: (x[m] - x.detach()[m]).abs().add(1e-3).sqrt().mean() + x[m].norm(),
    "finite where taken": lambda w, x, y, c, m: (
        (x[m] - y[m]).abs().sqrt().mean() + (1 / (x[m] - y[m])).mean() + torch.acos(torch.tanh(x[m])).sum()
    ),
    "powers": lambda w, x, y, c, m: (x[m].abs() ** 0.3).mean() + torch.pow(x[m].abs(), y[m]).mean() + (2 ** x[m]).sum(),
    "logarithms": lambda w, x, y, c, m: (
        lambda d: (d**2).mean() - 0.5 * d.mean() ** 2
    )(x[m].abs().log() - y[m].abs().log()),
    "spread": lambda w, x, y, c, m: (lambda a: ((a - a.mean()) / (a.std() + 1e-6)).pow(3).sum())(x[m].sum(-1)),
    "columns": lambda w, x, y, c, m: x[m][:, 1:3].sum() + x[m, 1].mean() + x[m][..., 2].mean() + x[m][:, None].mean(),
    "flattened": lambda w, x, y, c, m: x[m].view(-1).mean() + x[m].flatten().pow(3).mean(),
    "taken apart": lambda w, x, y, c, m: (
        (w.head(x)[m][:, :6].reshape(-1, 3).softmax(-1)[:, 0] * w.head(y)[m][:, 1:].reshape(-1, 3)[:, 1]).pow(2).mean()
    ),
    "put together": lambda w, x, y, c, m: functional.cross_entropy(
        w.head(x)[m].view(-1).tanh().view(-1, CLASSES), c[m]
    ) + x[m].flatten().view(-1, 1, WIDTH).norm(dim=2).mean(),
    "by an expanded mask": lambda w, x, y, c, m: (
        x.masked_select(m.unsqueeze(-1)).view(-1, WIDTH).softmax(-1) * y[m.unsqueeze(-1).expand_as(y)].view(-1, WIDTH)
    ).sum(),
    "by the same expanded mask": lambda w, x, y, c, m: by_one_mask(x, y, m.unsqueeze(-1).expand_as(x)),
    "numbers by a wider mask": lambda w, x, y, c, m: (
        functional.cross_entropy(w.head(x.masked_select(m.unsqueeze(-1)).view(-1, WIDTH)), c.masked_select(m))
        + functional.cross_entropy(w.head(y[m[..., None].expand_as(y)].view(-1, WIDTH)), c[m])
    ),
    "a dim behind all": lambda w, x, y, c, m: (x[m][..., None] * y[m][..., None, :]).mean((1, 2)).pow(2).sum(),
    "columns set": lambda w, x, y, c, m: columns_set(x, y, m),
    "padded": lambda w, x, y, c, m: (
        functional.pad(x[m], (1, 0)).cumsum(-1).pow(2).mean() + functional.pad(x[m], (0, 2), value=1.5).prod(-1).sum()
    ),
    "gathered": lambda w, x, y, c, m: -w.head(x)[m].log_softmax(-1).gather(1, c[m].unsqueeze(1)).squeeze(1).mean(),
    "joined": lambda w, x, y, c, m: torch.cat([x[m], y[~m]]).pow(2).mean() + torch.stack([x[m], y[m]], 1).std(1).sum(),
    "tables": lambda w, x, y, c, m: w.table(c[m]).pow(2).mean() + w.scale[c[m]].sum(),
    "counted": lambda w, x, y, c, m: x[m].sum() / x[m].numel() + x[m].sum() / (x[m].shape[0] + 1) + x[m].sum() / (
        x[m].size(0) + 2
    ),
    "written": lambda w, x, y, c, m: written(x, y, m),
    "given one vector": lambda w, x, y, c, m: given_alike(x, y, m, w),
    "in place": lambda w, x, y, c, m: in_place(x, m),
    "places": lambda w, x, y, c, m: x[torch.where(m)].mean() + x[m.nonzero(as_tuple=True)].pow(3).sum(),
    "places of rows": lambda w, x, y, c, m: (
        x.view(-1, WIDTH)[m.view(-1).nonzero().squeeze(1)].mean()
        + y.view(-1, WIDTH).index_select(0, m.view(-1).nonzero()[:, 0]).pow(3).mean()
    ),
    "rows of the batch": lambda w, x, y, c, m: x[m[:, 0]].mean() + x[m.any(1)].sum(),
    "boxes": lambda w, x, y, c, m: (
        torch.min(x[m][:, 2:4], y[m][:, 2:4]) - torch.max(x[m][:, :2], y[m][:, :2])
    ).clamp(min=0).prod(1).mean(),
    "accuracy": lambda w, x, y, c, m: (w.head(x)[m].argmax(-1) == c[m]).double().mean() + x[m].sum(),
    "triplets": lambda w, x, y, c, m: functional.triplet_margin_loss(x[m], y[m], x[m] * 0.5),
}  # fmt: skip
OTHERWISE: dict[str, Case] = {
    "divided in place": lambda w, x, y, c, m: over_count(x[m].pow(2).sum(), x[m]),
    "a count that is added to": lambda w, x, y, c, m: added(x[m], y[~m]),
    "reckoned with a count": lambda w, x, y, c, m: (
        x[m].sum() * (1 / (x[m].shape[0] + 1)) + y[m].sum() / (2 * x[m].numel() + 3) ** 0.5
        - (x[m].size(0) - 7) * y.mean()
    ),
    "a pool of few": lambda w, x, y, c, m: (
        w.head((x[m] * 9).masked_fill(y[m] < -0.3, -math.inf).softmax(-1).nan_to_num() * x[m]).pow(2).mean()
    ),
    "largest of few": lambda w, x, y, c, m: w.norm(x)[m.any(1)].masked_fill(~m[m.any(1)].unsqueeze(-1), -math.inf).max(
        1
    ).values.pow(2).mean(),
    "one tensor of places": lambda w, x, y, c, m: x.view(-1, WIDTH)[torch.where(m.view(-1))[0]].pow(2).mean(),
    "powers by a number": lambda w, x, y, c, m: torch.pow(x[m].abs() + 0.1, 0.4).mean() + torch.pow(2.0, y[m]).mean(),
    "directions": lambda w, x, y, c, m: (functional.normalize(x[m]) * y[m]).mean(),
    "axis": lambda w, x, y, c, m: torch.sum(x[m], axis=-1).pow(2).mean() + torch.mean(x[m], axis=0).sum()  # type: ignore[call-overload]
,
    "entries from the fifth on": lambda w, x, y, c, m: w.table(c[c > 3] - 4).pow(2).sum() + w.scale[c[c > 3] - 4].sum(),
    "all alike": lambda w, x, y, c, m: (lambda a: ((a - a.mean()) / (a.std() + 1e-6)).sum())(x[m].mean(-1) * 0 + 1),
    "in 16 bits": lambda w, x, y, c, m: (x.half() + 100)[m].mean().double(),
    "a mask that is written later": lambda w, x, y, c, m: (
        lambda chosen: (chosen * 1, m.logical_not_(), chosen.mean())[2]
    )(x.detach()[m] * w.scale[:WIDTH]),
}  # fmt: skip
REFUSED: dict[str, Case] = {
    "given a row": lambda w, x, y, c, m: (x.index_put_(torch.where(m), y[:1, 0]), x.sum())[1],
    "a count asked what it is": lambda w, x, y, c, m: average(x[m].sum(), x[m].shape[0]),
    "matched": lambda w, x, y, c, m: matched(x[m]),
    "a count compared": lambda w, x, y, c, m: x[m].sum() / max(x[m].shape[0], 1),
    "a count of a count": lambda w, x, y, c, m: x[m].sum() / (2 if hasattr(x[m].shape[0], "clamp") else 1),
    "sizes": lambda w, x, y, c, m: x[m].sum() / x[m].shape.numel(),
    "a number of a selection": lambda w, x, y, c, m: x.sum() * float(x[m][:1, 0]),
    "masks of masks": lambda w, x, y, c, m: (
        x[m][x[m].sum(-1) > 0].flatten() * x[m][y[m].sum(-1) > 0].flatten()
    ).mean(),
    "copied by a name that is none": lambda w, x, y, c, m: (lambda a: a.copy_(y[m]).mean())(x[m] * 1),
    "written and alike": lambda w, x, y, c, m: (lambda a: (a, a.long().add_(1), w.scale[a].sum())[2])(c[m] * 0),
    "caught": lambda w, x, y, c, m: caught(x[m]),
    "its class": lambda w, x, y, c, m: x[m].mean() if type(x[m]) is Tensor else x.sum(),
    "whether it is a tensor": lambda w, x, y, c, m: x[m].mean() if torch.is_tensor(x[m]) else x.sum(),
    "whether its rows are counted": lambda w, x, y, c, m: x[m].mean() / (2 if isinstance(x[m].shape[0], int) else 1),
    "other places": lambda w, x, y, c, m: shifted(x, m),
    "soft classes over rows": lambda w, x, y, c, m: functional.cross_entropy(x[m][:, 0], y[m][:, 0]),
    "an int of rows": lambda w, x, y, c, m: x[m][:, 0].reshape(4, -1).sum(0).pow(2).mean(),
    "no dims": lambda w, x, y, c, m: x[m].sum(()).mean(),
    "dropped in attention": lambda w, x, y, c, m: functional.scaled_dot_product_attention(
        x[m[:, 0]], x[m[:, 0]], x[m[:, 0]], dropout_p=0.5
    ).mean(),
    "counted entries": lambda w, x, y, c, m: functional.embedding(c[m], w.table.weight, scale_grad_by_freq=True).mean(),
    "in order": lambda w, x, y, c, m: x[m].cumsum(0).mean(),
    "rows of some of two": lambda w, x, y, c, m: x[m].reshape(-1, 2).prod(-1).sum(),
    "other dims of a mask": lambda w, x, y, c, m: (
        x.view(-1, 6)[:6][m[:1].expand(6, 6)].view(-1) * x.view(-1, 6)[:6][m[0].unsqueeze(-1).expand(6, 6)].view(-1)
    ).sum(),
    "columns set that are seen": lambda w, x, y, c, m: columns_seen(x, m, True),
    "columns added to that are seen": lambda w, x, y, c, m: columns_seen(x, m, False),
    "rows set": lambda w, x, y, c, m: first_set(x[m] * 1),
    "more rows above": lambda w, x, y, c, m: functional.pad(x[m], (0, 0, 1, 0)).sum(),
    "with each other": lambda w, x, y, c, m: (x[m] @ x[m].t()).mean(),
    "median": lambda w, x, y, c, m: x[m].median(),
    "other rows": lambda w, x, y, c, m: (x[m] - y[~m]).mean(),
    "other rows, as many dims": lambda w, x, y, c, m: (x[m] * torch.ones(24, WIDTH)).mean(),
    "unlike dims": lambda w, x, y, c, m: (x[m] * x[m].mean(-1)).mean(),
    "dropped": lambda w, x, y, c, m: functional.dropout(x[m], 0.1).mean(),
    "as a list": lambda w, x, y, c, m: sum(row.mean() for row in x[m]) / len(x[m]),
    "asked what it is": lambda w, x, y, c, m: x[m].mean() if isinstance(x[m], Tensor) else x.sum(),
    "a view written": lambda w, x, y, c, m: (lambda a: a.view(-1).mul_(2).sum() + a.mean())(x[m] * 1),
    "a mask that was written into": lambda w, x, y, c, m: (
        lambda a: (a - (m.logical_not_(), y[m])[1]).mean()
    )(x[m]),
    "normed over rows": lambda w, x, y, c, m: functional.batch_norm(x[m], None, None, training=True).pow(3).mean(),
    "in a loop": lambda w, x, y, c, m: torch.stack([x[m].mean() for _ in range(200)]).sum(),
    "its truth": lambda w, x, y, c, m: x[m].mean() if x[m] is not None and x[m] else x.sum(),
}  # fmt: skip


def of(case: Case, weights: Weights, share: float, selecting: bool) -> Iterator[Tensor]:
    """What a function gives, and its gradients, for a mask that takes this share."""
    draws = torch.Generator().manual_seed(round(share * 10))
    x, y = (torch.randn(4, 6, WIDTH, generator=draws).requires_grad_() for _ in range(2))
    classes = torch.randint(0, CLASSES, (4, 6), generator=draws)
    mask = torch.rand(4, 6, generator=draws) < share
    leaves = [x, y, *weights.parameters()]
    if selecting:
        with Selections(Products(allowed=True), answered):
            result = case(weights, x * 1, y * 1, classes, mask)
    else:
        result = case(weights, x * 1, y * 1, classes, mask)
    yield result.detach()
    for leaf, gradient in zip(leaves, torch.autograd.grad(result, leaves, allow_unused=True), strict=True):
        yield torch.zeros_like(leaf) if gradient is None else gradient


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Numbers of 64 bits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore:std")  # of one row, or of none
@pytest.mark.parametrize("share", [0.5, 0.2, 1.0, 0.0])
@pytest.mark.parametrize("name", [*RIGHT, *OTHERWISE])
def test_a_selection_gives_the_numbers_and_gradients_of_eager(name: str, share: float) -> None:
    weights, case = Weights(), {**RIGHT, **OTHERWISE}[name]
    pairs = list(zip(of(case, weights, share, True), of(case, weights, share, False), strict=True))
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12, equal_nan=True)
    assert share < 0.5 or math.isfinite(pairs[0][1])


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_the_selected_rows_themselves_tell_is_refused(name: str) -> None:
    with pytest.raises(SelectionError):
        list(of(REFUSED[name], Weights(), 0.5, True))


LAYOUTS: dict[tuple[str, str], dict[str, object]] = {
    ("Masked", "replicas"): {"data": 2, "microbatches": 2},
    ("Headed", "replicas"): {"data": 2, "microbatches": 1},
    ("Headed", "stages"): {"pipeline": 2, "microbatches": 2},
    ("Placed", "replicas"): {"data": 2, "microbatches": 2},
    ("Positive", "cut"): {"tensor": 2},
    ("Contrasted", "cut"): {"tensor": 2},
    ("Detected", "replicas"): {"data": 2, "microbatches": 2},
    ("Picked", "replicas"): {"data": 2, "microbatches": 2},
    ("Triangles", "replicas"): {"data": 2, "microbatches": 2},
    ("Paired", "rows"): {"rows": 2},
    ("Apart", "stages"): {"pipeline": 2},
}


@cache
def plan_of(model: str, layout: str) -> Plan:
    """A model over two ranks."""
    return placer.plan(
        f"selecting_models:{model}", "localx2", batch={"x": ((8, 6), "int64"), "labels": ((8, 6), "int64")},
        pins=LAYOUTS[model, layout], settings=RunSettings(precision="float64"), budget=20,
    )  # fmt: skip


@pytest.mark.in_turns
@pytest.mark.parametrize(("model", "layout"), LAYOUTS, ids=lambda one: one)
def test_a_model_that_selects_trains_as_on_one_device(model: str, layout: str) -> None:
    plan = plan_of(model, layout)
    for found in on_ranks(2, trained, plan):
        assert all(map(math.isfinite, found.losses))
        assert differences(found, on_one_device(plan)) == []


def test_products_of_selected_rows_are_said_to_be_of_all_rows() -> None:
    said = [note for note in plan_of("Headed", "stages").graph.notes if "of all rows" in note]
    assert len(said) == 1
    assert "linear" in said[0]
    assert not [note for note in plan_of("Masked", "replicas").graph.notes if "of all rows" in note]


class Experts(nn.Module):
    """Experts that take the tokens of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(N, WIDTH) of (N, WIDTH)."""
        best, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out[best == number] = expert(x[best == number])
        return out


class Routed(nn.Module):
    """Experts in a part of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.moe = Experts()

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        number: Tensor = self.moe(x).pow(2).mean()
        return number


@pytest.mark.in_turns
def test_a_part_that_multiplies_what_it_selects_runs_as_it_is() -> None:
    graph = capture(Routed(), batch={"x": (8, WIDTH)})
    assert any(note.startswith("moe cannot be exported and is one opaque op") for note in graph.notes)


@pytest.mark.in_turns
def test_a_selection_that_stays_unknown_is_refused_as_before() -> None:
    class Sorted(Routed):
        def forward(self, x: Tensor) -> Tensor:
            number: Tensor = self.moe(x).mean() + x[x > 0].cumsum(0).mean()
            return number

    with pytest.raises(CaptureError, match="mask of fixed size"):
        capture(Sorted(), batch={"x": (8, WIDTH)})
