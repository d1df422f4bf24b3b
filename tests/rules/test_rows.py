"""Which models keep the rows of a batch apart up to the loss, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import placer
from placer.graph import Graph
from placer.rules.calls import MARKED_ROWS, Call, Value
from placer.rules.layouts import WHOLE, Cut
from placer.rules.rows import row_split, whole_batch_reason
from placer.rules.rows.row_rules import row_rule

pytestmark = pytest.mark.in_turns

Tensor = torch.Tensor
Loss = Callable[["Net", Tensor, Tensor, Tensor], Tensor]


class Net(nn.Module):
    """A layer whose features `loss` makes a loss of, with the inputs x (rows, 8) and the labels y (rows)."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.layer, self.head, self.norm = nn.Linear(8, 8), nn.Linear(8, 3), nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros(()))
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self, self.layer(x), x, y)


def captured(loss: Loss) -> Graph:
    return placer.capture(Net(loss), batch={"x": torch.zeros(6, 8), "y": torch.zeros(6, dtype=torch.int64)})


def _masked_mean(h: Tensor, mask: Tensor) -> Tensor:
    return (h.pow(2) * mask).sum() / mask.sum()


def _put(h: Tensor, mask: Tensor, given: Tensor) -> Tensor:
    made = h * 2
    made[mask] = given
    return made.pow(2).mean()


def _density(h: Tensor) -> Tensor:
    law = torch.distributions.MultivariateNormal(torch.zeros(8), torch.eye(8), validate_args=False)
    return law.log_prob(h)  # type: ignore[no-any-return, no-untyped-call]


def _own_kernels(x: Tensor, h: Tensor) -> Tensor:
    """Each row by kernels that are made of it, the rows among the channels."""
    rows = h.shape[0]
    narrow = functional.conv1d(
        x.view(1, -1, 4), h.view(-1, 1, 4)[:, :, :3], h.view(-1, 8)[:, :2].reshape(-1), groups=2 * rows
    )
    return functional.conv_transpose1d(narrow, h.view(-1, 2, 2), groups=rows).view(rows, 2, -1)


def tokens(h: Tensor) -> Tensor:
    return h.view(-1, 2, 4)


APART: dict[str, Loss] = {
    "divided by the count of rows": lambda net, h, x, y: h.pow(2).sum() / h.shape[0],
    "divided by the count of elements": lambda net, h, x, y: h.pow(2).sum() / (h.shape[0] * 8),
    "a mean of two means": lambda net, h, x, y: torch.stack([h.mean(), h.pow(2).mean()]).mean(),
    "weighted losses of two kinds": lambda net, h, x, y: (
        functional.cross_entropy(net.head(h), y) + 0.1 * functional.mse_loss(h, x)
    ),
    "labels left out twice": lambda net, h, x, y: (
        functional.cross_entropy(net.head(h), y.masked_fill(y == 1, -100))
        + functional.cross_entropy(net.head(h), y, weight=torch.tensor([1.0, 2.0, 3.0]))
    ),
    "a mask's count": lambda net, h, x, y: (h.pow(2).mean(1) * (y > 0)).sum() / (y > 0).sum().clamp(min=1),
    "a mask's count and a number": lambda net, h, x, y: (h.pow(2).mean(1) * (y > 0)).sum() / ((y > 0).sum() + 1e-6),
    "products over dims that dots stand for": lambda net, h, x, y: (
        torch.einsum("...id,...jd->...ij", tokens(h), tokens(x)).pow(2).mean()
    ),
    "numbers beside a mean": lambda net, h, x, y: 2 - 2 * functional.cosine_similarity(h, x).mean() + 0.5,
    "a penalty on weights": lambda net, h, x, y: h.pow(2).mean() + 0.1 * net.layer.weight.pow(2).sum(),
    "the divergence's batch mean": lambda net, h, x, y: functional.kl_div(
        h.log_softmax(1), x.softmax(1), reduction="batchmean"
    ),
    "a divergence to one law for all rows": lambda net, h, x, y: functional.kl_div(
        torch.full((1,), -2.0), h.log_softmax(1), reduction="batchmean", log_target=True
    ),
    "each row's own entries, by repeated numbers": lambda net, h, x, y: h[
        torch.arange(h.shape[0]).view(-1, 1).repeat(1, 2), torch.stack([y, 1 - y % 2], dim=1)
    ].mean(),
    "each row's own entry": lambda net, h, x, y: h[torch.arange(h.shape[0]), y].mean(),
    "time first": lambda net, h, x, y: (
        tokens(h).transpose(0, 1).reshape(-1, 4).tanh().view(2, -1, 4).transpose(0, 1).pow(2).mean()
    ),
    "a recurrent layer": lambda net, h, x, y: net.lstm(tokens(h))[0].pow(2).mean(),
    "a norm of each row": lambda net, h, x, y: functional.normalize(h, dim=1).sum(),
    "a product over rows, added up": lambda net, h, x, y: (h.T @ h).sum(),
    "a distance to something whole": lambda net, h, x, y: torch.cdist(h, net.layer.weight).mean(),
    "a broadcast loss": lambda net, h, x, y: functional.mse_loss(h.mean(1), x.mean(1)),
    "what is scattered in each row and reduced": lambda net, h, x, y: (
        tokens(x).scatter_reduce(1, torch.zeros_like(tokens(x), dtype=torch.int64), tokens(h), "amax").mean()
    ),
    "dropout with time first": lambda net, h, x, y: functional.dropout(tokens(h).transpose(0, 1), 0.1).pow(2).mean(),
    "resampled with the rows for channels": lambda net, h, x, y: (
        functional.interpolate(tokens(h)[None], size=(4, 8)).pow(2).mean()
    ),
    "a Fourier transform of each row": lambda net, h, x, y: torch.fft.rfft(h).abs().mean(),
    "one over the dims of each row": lambda net, h, x, y: torch.fft.rfftn(tokens(h), dim=(1, 2)).abs().mean(),
    "one over as many dims as sizes": lambda net, h, x, y: torch.fft.ifftn(tokens(h), s=(2, 4)).abs().mean(),
    "a spectrogram of each row": lambda net, h, x, y: (
        torch.stft(h, 4, 2, window=torch.hann_window(4), return_complex=True).abs().mean()
    ),
    "a turned plane of each row": lambda net, h, x, y: tokens(h).rot90(1, dims=(1, 2)).cumsum(1).pow(2).mean(),
    "inner products with something whole": lambda net, h, x, y: torch.inner(net.layer.weight, h).pow(2).mean(),
    "a chain of products": lambda net, h, x, y: torch.linalg.multi_dot(
        [h, net.layer.weight, net.head.weight.t()]
    ).mean(),
    "cross products of each row": lambda net, h, x, y: torch.cross(h[:, :3], x[:, :3], dim=-1).pow(2).mean(),
    "inner products of each row": lambda net, h, x, y: torch.linalg.vecdot(h, x).pow(2).mean(),
    "inner products of a weight with each row": lambda net, h, x, y: (
        torch.linalg.vecdot(net.norm.weight, h).pow(2).mean()
    ),
    "a mask that is drawn": lambda net, h, x, y: _masked_mean(h, torch.rand(h.shape) < 0.5),
    "labels that are drawn": lambda net, h, x, y: functional.cross_entropy(
        net.head(h), torch.where(torch.rand(y.shape) < 0.5, y, -100)
    ),
    "powers of each entry": lambda net, h, x, y: torch.linalg.vander(tokens(h), N=3).mean(),
    "eigenvalues of each row's matrix": lambda net, h, x, y: (
        torch.linalg.eigvals(tokens(h)[..., :2]).abs().pow(2).mean()
    ),
    "numbers among others": lambda net, h, x, y: (h.mean(1) * torch.isin(y, torch.tensor([1, 2]))).mean(),
    "resampled to the nearest": lambda net, h, x, y: (
        functional.interpolate(tokens(h), size=7, mode="nearest-exact").pow(2).mean()
    ),
    "the places of maxima": lambda net, h, x, y: (
        functional.max_pool1d(tokens(h), 2, return_indices=True)[0] * tokens(x)[..., :2]
    ).mean(),
    "special functions": lambda net, h, x, y: (
        torch.special.erfcx(h) + torch.special.entr(h.sigmoid()) + torch.special.gammainc(x.abs() + 1, h.exp())
    ).mean(),
    "a grid of each row's transform": lambda net, h, x, y: functional.affine_grid(
        h[:, :6].reshape(-1, 2, 3), [h.shape[0], 1, 4, 4], align_corners=False
    ).mean(),
    "two batches in one": lambda net, h, x, y: (
        torch.cat([h, x]).tanh()[: h.shape[0]] * torch.cat([h, x]).tanh().narrow(0, h.shape[0], h.shape[0])
    ).mean(),
    "the last two batches of three": lambda net, h, x, y: torch.cat([x, h, h])[-2 * h.shape[0] :].pow(2).mean(),
    "solved for each row with one triangle": lambda net, h, x, y: (
        torch.linalg.solve_triangular(net.layer.weight, h.t(), upper=False).pow(2).mean()
    ),
    "a density of rows": lambda net, h, x, y: _density(h).mean(),
    "rows taken apart and joined again": lambda net, h, x, y: torch.cat(list(tokens(h))).tanh().mean(),
    "rows that lie across, taken apart and joined again in order": lambda net, h, x, y: (
        torch.cat(list(tokens(h).transpose(1, 2))).view(-1, 2).tanh().mean()
    ),
    "a vector at places of a mask": lambda net, h, x, y: _put(tokens(h), tokens(x)[..., 0] > 0, net.norm.weight[:4]),
    "a row of one vector at places of a mask": (
        lambda net, h, x, y: _put(tokens(h), tokens(x)[..., 0] > 0, net.norm.weight[None, :4])
    ),
    "a vector at some places of all rows": (
        lambda net, h, x, y: _put(tokens(h).transpose(0, 1), net.norm.weight[:2] > 0, net.norm.bias[:4])
    ),
    "places that each row's numbers fill": lambda net, h, x, y: h.masked_scatter(x > 0, x.tanh()).pow(2).mean(),
    "a kernel of each row's own": lambda net, h, x, y: _own_kernels(x, h).pow(2).mean(),
    "what mixes rows and is thrown away": lambda net, h, x, y: (h.mean() + h.softmax(0).sum() * 0, h.mean())[1],
}
MIXED: dict[str, tuple[Loss, str]] = {
    "less the mean over rows": (lambda net, h, x, y: (h - h.mean(0)).pow(2).mean(), "aten.sub.Tensor"),
    "a softmax over rows": (lambda net, h, x, y: (h.softmax(0) * h).sum(), "aten.softmax.int"),
    "a maximum over rows": (lambda net, h, x, y: h.amax(0).sum(), "aten.amax.default"),
    "a running sum": (lambda net, h, x, y: h.cumsum(0).mean(), "aten.cumsum.default"),
    "sorted rows": (lambda net, h, x, y: h.sort(0)[0].pow(2).mean(), "aten.sort.default"),
    "rolled rows": (lambda net, h, x, y: (h * h.roll(1, 0)).mean(), "aten.roll.default"),
    "reversed rows": (lambda net, h, x, y: (h * h.flip(0)).mean(), "aten.flip.default"),
    "the first row": (lambda net, h, x, y: h[0].sum(), "aten.select.int"),
    "parts of two batches in one": (
        lambda net, h, x, y: torch.cat([h, x])[1 : h.shape[0] + 1].pow(2).mean(),
        "aten.slice.Tensor",
    ),
    "every other row of two batches in one": (
        lambda net, h, x, y: torch.cat([h, x])[::2].pow(2).mean(),
        "aten.slice.Tensor",
    ),
    "neighbours": (lambda net, h, x, y: (h[1:] - h[:-1]).pow(2).mean(), "aten.slice.Tensor"),
    "every row with every other": (lambda net, h, x, y: (h @ h.T).pow(2).mean(), "aten.matmul.default"),
    "a square of a sum": (lambda net, h, x, y: (h.T @ h).pow(2).sum(), "aten.pow.Tensor_Scalar"),
    "rows and features in one dim": (lambda net, h, x, y: h.view(4, -1).softmax(1).pow(2).sum(), "aten.view.default"),
    "a root of a mean": (lambda net, h, x, y: h.pow(2).mean().sqrt(), "aten.sqrt.default"),
    "a product of means": (lambda net, h, x, y: h.mean() * h.pow(2).mean(), "aten.mul.Tensor"),
    "the larger of two losses": (
        lambda net, h, x, y: torch.maximum(h.mean(), h.pow(2).mean()),
        "aten.maximum.default",
    ),
    "a Fourier transform of all dims": (lambda net, h, x, y: torch.fft.fftn(h).abs().mean(), "aten.fft_fftn.default"),
    "a spectrogram over rows": (
        lambda net, h, x, y: (
            torch.stft(h.mean(1), 2, 1, window=torch.ones(2), center=False, return_complex=True).abs().mean()
        ),
        "aten.stft.default",
    ),
    "rows turned into features": (lambda net, h, x, y: (h.rot90(1)[:, :1] ** 2).mean(), "aten.rot90.default"),
    "inner products of rows": (lambda net, h, x, y: torch.inner(h, h).pow(2).mean(), "aten.inner.default"),
    "a chain that ends in rows": (
        lambda net, h, x, y: torch.linalg.multi_dot([net.head.weight, net.layer.weight, h.t()]).pow(2).mean(),
        "aten.linalg_multi_dot.default",
    ),
    "labels among all labels": (
        lambda net, h, x, y: (h.mean(1) * torch.isin(y, y % 2)).mean(),
        "aten.isin.Tensor_Tensor",
    ),
    "rows chosen by labels": (lambda net, h, x, y: h[y].mean(), "aten.index.Tensor"),
    "rows resampled": (
        lambda net, h, x, y: functional.interpolate(h.t()[None], scale_factor=2.0).mean(),
        "aten.upsample_nearest1d.vec",
    ),
    "row numbers repeated along rows": (
        lambda net, h, x, y: h.repeat(2, 1)[torch.arange(h.shape[0]).repeat(2)].mean(),
        "aten.repeat.default",
    ),
    "places of the same mask for all rows": (
        lambda net, h, x, y: h.masked_scatter(net.norm.weight > 0, x).pow(2).mean(),
        "aten.masked_scatter.default",
    ),
    "a vector of all rows at places of a mask": (
        lambda net, h, x, y: _put(tokens(h), tokens(x)[..., 0] > 0, tokens(x).mean((0, 1))),
        "aten.index_put_.default",
    ),
    "a number of each row at some places of all": (
        lambda net, h, x, y: _put(h.t(), net.norm.weight > 0, x[:, 0]),
        "aten.index_put_.default",
    ),
    "places of more columns than are filled": (
        lambda net, h, x, y: h[:, :1].masked_scatter(x > 0, x.tanh()).pow(2).mean(),
        "aten.masked_scatter.default",
    ),
    "places that the same numbers fill": (
        lambda net, h, x, y: h.masked_scatter(x > 0, net.layer.weight).pow(2).mean(),
        "aten.masked_scatter.default",
    ),
    "places of all tokens in turn": (
        lambda net, h, x, y: tokens(h).transpose(0, 1).masked_scatter(tokens(x).transpose(0, 1) > 0, x).pow(2).mean(),
        "aten.masked_scatter.default",
    ),
    "kernels of rows that lie between channels": (
        lambda net, h, x, y: (
            functional.conv1d(
                tokens(x).transpose(0, 1).reshape(1, -1, 4),
                tokens(h)[:, :, None, :2].flatten(0, 1),
                groups=2 * h.shape[0],
            )
            .pow(2)
            .mean()
        ),
        "aten.conv1d.default",
    ),
    "as much padding as rows": (
        lambda net, h, x, y: (
            functional.conv1d(tokens(x), net.layer.weight[:2, :2, None], padding=h.shape[0]).pow(2).mean()
        ),
        "aten.conv1d.default",
    ),
    "row numbers as values": (lambda net, h, x, y: (h.mean(1) * torch.arange(h.shape[0])).mean(), "aten.mul.Tensor"),
}


def test_a_buffer_that_is_written_from_rows_keeps_the_batch_whole() -> None:
    graph = captured(lambda net, h, x, y: h.mean() + 0 * net.steps.add_(h.detach().mean()))
    assert "steps is written" in whole_batch_reason(graph, statistics=False)


@pytest.mark.parametrize("name", APART)
def test_rows_stay_apart(name: str) -> None:
    assert row_split(captured(APART[name])).why == ""


def test_a_grid_whose_lines_are_the_rows_mixes_them() -> None:
    """Where a line lies follows from how many there are; only transforms are of one row each."""
    call = Call(
        target="aten::affine_grid_generator",
        arguments=(Value((MARKED_ROWS, 2, 3)), (MARKED_ROWS, 1, 4, 4), False),
        outputs=(Value((MARKED_ROWS, 4, 4, 2)),),
    )
    rule = row_rule(call)
    assert rule is not None and rule(call, [Cut(0)]) == [Cut(0)]
    lines = replace(
        call, arguments=(Value((1, 2, 3)), (1, 1, MARKED_ROWS, 4), False), outputs=(Value((1, MARKED_ROWS, 4, 2)),)
    )
    assert rule(lines, [WHOLE]) is None


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_rows_is_named_with_its_line(name: str) -> None:
    loss, op = MIXED[name]
    why = row_split(captured(loss)).why
    assert why.startswith(op) and "test_rows.py:" in why


def test_batch_norm_keeps_the_batch_whole_unless_the_settings_say_otherwise() -> None:
    graph = captured(lambda net, h, x, y: net.norm(h).pow(2).mean())
    assert "batch_norm=microbatch" in whole_batch_reason(graph, statistics=False)
    assert whole_batch_reason(graph, statistics=True) == ""
