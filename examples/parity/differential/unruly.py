"""What a third of the models do beside their layers: write through views, mix rows of the batch, take losses of losses.

Of a number of ways each is drawn on its own, from a stream that leaves the rest of a model as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor, nn

# Of the models so many are unruly in one way, and of these so many in two.
SHARE, TWICE = 0.35, 0.3


def _scaled_slice(x: Tensor) -> Tensor:
    h = x.clone()
    h[:, : max(1, h.shape[1] // 2)] *= 1.5
    return h


def _put_through_view(x: Tensor) -> Tensor:
    h = x * 1.0
    h.view(h.shape[0], -1)[:, 0] = 0.25
    return h


def _added_through_transpose(x: Tensor) -> Tensor:
    h = x * 1.0
    h.transpose(0, 1)[0].add_(x[:, 0].tanh())
    return h


def _bounded_by_mask(x: Tensor) -> Tensor:
    h = x + 0.0
    h[h > 1.0] = 1.0
    return h


def _filled_in_pieces(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    half = x.shape[-1] // 2
    made[..., :half] = x[..., :half].sin()
    made[..., half:] = x[..., half:]
    return made


def _centred(x: Tensor) -> Tensor:
    return x - 0.5 * x.mean(0, keepdim=True)


def _weighted_by_rows(x: Tensor) -> Tensor:
    weights = x.flatten(1).mean(1).softmax(0)
    return x * (1 + weights.view(-1, *(1,) * (x.dim() - 1)))


def _rolled(x: Tensor) -> Tensor:
    return x + 0.3 * x.roll(1, 0)


def _normed_by_all(x: Tensor) -> Tensor:
    return x / (1 + x.norm() / x.shape[0])


WRITES: tuple[Callable[[Tensor], Tensor], ...] = (
    _scaled_slice, _put_through_view, _added_through_transpose, _bounded_by_mask, _filled_in_pieces,
)  # fmt: skip
MIXES: tuple[Callable[[Tensor], Tensor], ...] = (_centred, _weighted_by_rows, _rolled, _normed_by_all)
LOSSES: tuple[Callable[[Tensor, nn.Module], Tensor], ...] = (
    lambda loss, model: torch.stack([loss, 0.5 * loss.clone()]).sum(),
    lambda loss, model: torch.stack([loss, loss * 3.0]).mean(),
    lambda loss, model: loss + 0.01 * torch.stack([one.pow(2).sum() for one in model.parameters()]).sum(),
    lambda loss, model: (1.0 + loss).log() + loss,
    lambda loss, model: torch.where(loss > 0.5, loss * 2.0, loss),
)


class Followed(nn.Module):
    """A layer, and what is done to its result."""

    def __init__(self, layer: nn.Module, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then = layer, then

    def forward(self, *given: Tensor) -> Tensor:
        """The same shape."""
        return self.then(self.layer(*given))


class OtherLoss(nn.Module):
    """A model, and what is made of its loss."""

    def __init__(self, model: nn.Module, total: Callable[[Tensor, nn.Module], Tensor]) -> None:
        super().__init__()
        self.model, self.total = model, total

    def forward(self, labels: Tensor, tokens: Tensor | None = None, image: Tensor | None = None) -> Tensor:
        """The loss of the loss."""
        return self.total(self.model(image if tokens is None else tokens, labels), self.model)


def made_unruly(seed: str, model: nn.Module) -> tuple[nn.Module, str]:
    """The model, or one that does such things, and which."""
    draw = Random(f"{seed} unruly")
    if draw.random() >= SHARE:
        return model, ""
    told = []
    for kind in draw.sample(("writes", "mixes", "losses"), 2 if draw.random() < TWICE else 1):
        if kind == "losses":
            model = OtherLoss(model, draw.choice(LOSSES))
        else:
            layers = _layers(model)
            at = draw.randrange(len(layers))
            layers[at] = Followed(layers[at], draw.choice(WRITES if kind == "writes" else MIXES))
        told.append(kind)
    return model, " ".join(sorted(told))


def _layers(model: nn.Module) -> nn.ModuleList:
    inner = model.model if isinstance(model, OtherLoss) else model
    layers = inner.get_submodule("layers")
    assert isinstance(layers, nn.ModuleList)
    return layers
