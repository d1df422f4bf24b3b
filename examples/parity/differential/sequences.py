"""Random layers on (rows, length, width): products, attention, experts, norms, and ways to move along a sequence.

Each maker draws one layer that keeps the shape. B rows, L length, H width, A heads, G groups of heads, D of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import torch
from torch import nn
from torch.nn import functional
from transformers.integrations import moe  # noqa: F401  (registers the product of sorted rows by their experts)

ACTIVATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    functional.gelu, functional.relu, functional.silu, torch.tanh, torch.sigmoid, functional.softplus,
)  # fmt: skip


class FeedForward(nn.Module):
    """Two products around an activation."""

    def __init__(self, draw: Random, width: int, drop: float) -> None:
        super().__init__()
        wide = width * draw.choice((1, 2, 3))
        self.wide = nn.Linear(width, wide, bias=draw.random() < 0.6)
        self.back = nn.Linear(wide, width, bias=draw.random() < 0.6)
        self.activation = draw.choice(ACTIVATIONS)
        self.dropout = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return self.dropout(self.back(self.activation(self.wide(x))))


class Gated(nn.Module):
    """One product times the activation of another, which may be one product divided in two."""

    def __init__(self, draw: Random, width: int, drop: float) -> None:
        super().__init__()
        wide = 2 * width
        self.fused = draw.random() < 0.5
        self.first = nn.Linear(width, 2 * wide if self.fused else wide, bias=False)
        self.second = None if self.fused else nn.Linear(width, wide, bias=draw.random() < 0.3)
        self.back = nn.Linear(wide, width)
        self.dropout = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        if self.second is None:
            gate, value = self.first(x).chunk(2, -1)
        else:
            gate, value = self.first(x), self.second(x)
        return self.dropout(self.back(functional.silu(gate) * value))


class Attention(nn.Module):
    """Grouped heads, causal or not, with or without rotary positions, by one op or written out."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, draw: Random, width: int, length: int, drop: float) -> None:
        super().__init__()
        self.heads = draw.choice([count for count in (2, 4, 6) if width % count == 0])
        self.groups = draw.choice([count for count in (1, 2, 4, 6) if self.heads % count == 0])
        self.size = width // self.heads
        self.sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        bias = draw.random() < 0.5
        self.fused = draw.random() < 0.4
        self.inputs = nn.ModuleList(
            [nn.Linear(width, sum(self.sizes), bias)] if self.fused else [nn.Linear(width, n, bias) for n in self.sizes]
        )
        self.output = nn.Linear(width, width, bias=bias)
        self.causal, self.written = draw.random() < 0.5, draw.random() < 0.4
        self.native = draw.random() < 0.5  # whether the op itself repeats grouped heads
        self.drop = drop
        angle = torch.outer(torch.arange(length), 100.0 ** -(torch.arange(self.size // 2) / max(self.size // 2, 1)))
        self.rotary = draw.random() < 0.4 and self.size % 2 == 0
        self.register_buffer("cos", torch.cat([angle, angle], -1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], -1).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        made = self.inputs[0](x).split(self.sizes, -1) if self.fused else [one(x) for one in self.inputs]
        q, k, v = (one.unflatten(-1, (-1, self.size)).transpose(1, 2) for one in made)
        if self.rotary:
            q, k = self._turned(q), self._turned(k)
        mixed = self._written(q, k, v) if self.written else self._called(q, k, v)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _called(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = self.groups != self.heads
        if grouped and not self.native:
            k, v = (one.repeat_interleave(self.heads // self.groups, 1) for one in (k, v))
        drop = self.drop if self.training else 0.0
        return functional.scaled_dot_product_attention(
            q, k, v, dropout_p=drop, is_causal=self.causal, enable_gqa=grouped and self.native
        )

    def _written(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (one.repeat_interleave(self.heads // self.groups, 1) for one in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size)
        if self.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        weights = functional.dropout(scores.softmax(-1), self.drop, self.training)
        return weights @ v

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin


class Experts(nn.Module):
    """Each position goes to its best experts, whose results are weighted by the router.

    form: all experts on all positions, the weights of each position gathered, or positions sorted by expert.
    """

    def __init__(self, draw: Random, width: int) -> None:
        super().__init__()
        self.count, self.best = draw.choice((4, 8)), draw.choice((1, 2))
        self.router = nn.Linear(width, self.count, bias=False)
        self.first = nn.Parameter(torch.randn(self.count, width, 2 * width) * 0.2)
        self.second = nn.Parameter(torch.randn(self.count, 2 * width, width) * 0.2)
        self.form = draw.choice(("products", "einsum", "gathered", "sorted", "sorted"))
        self.normed = draw.random() < 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(self.best, -1)
        if self.normed:
            weights = weights / weights.sum(-1, keepdim=True)
        forms = {"gathered": self._gathered, "sorted": self._sorted}
        return forms.get(self.form, self._all)(flat, weights, chosen).view(x.shape)

    def _all(self, flat: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        share = torch.zeros(flat.shape[0], self.count, dtype=flat.dtype, device=flat.device)
        share = share.scatter(1, chosen, weights)
        if self.form == "einsum":
            inner = functional.gelu(torch.einsum("th,ehi->eti", flat, self.first))
            return torch.einsum("eti,eih,te->th", inner, self.second, share)
        inner = functional.gelu(torch.matmul(flat.unsqueeze(0), self.first))
        return (torch.bmm(inner, self.second) * share.t().unsqueeze(-1)).sum(0)

    def _gathered(self, flat: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        which = chosen.flatten()
        rows = flat.repeat_interleave(self.best, 0).unsqueeze(1)
        inner = functional.gelu(torch.bmm(rows, self.first[which]))
        made = torch.bmm(inner, self.second[which]).view(-1, self.best, flat.shape[1])
        return (made * weights.unsqueeze(-1)).sum(1)

    def _sorted(self, flat: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """As transformers does: rows sorted by expert, grouped products, rows put back."""
        which, order = chosen.flatten().sort()
        rows, share = flat[order // self.best], weights.flatten()[order]
        counts = torch.histc(which.to(flat.dtype), bins=self.count, min=0, max=self.count - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        inner = functional.gelu(product(rows, self.first, ends))
        made = product(inner, self.second, ends) * share.unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0], device=order.device)
        return made[back].view(-1, self.best, flat.shape[1]).sum(1)


class Along(nn.Module):
    """Moves values along the sequence: a convolution, a product over positions, pooling, gathers, running sums."""

    order: torch.Tensor

    def __init__(self, draw: Random, width: int, length: int) -> None:
        super().__init__()
        self.kind = draw.choice(("convolution", "mixer", "pool", "gather", "scatter", "running", "context", "shift"))
        groups, spread = draw.choice((1, 2, width)), draw.choice((1, 2))
        self.convolution = nn.Conv1d(width, width, 3, padding=spread, dilation=spread, groups=groups)
        self.mixer = nn.Linear(length, length)
        self.gate = nn.Linear(width, width)
        self.largest = draw.random() < 0.5
        self.register_buffer("order", torch.tensor(draw.sample(range(length), length)))
        for name in {"convolution", "mixer", "gate"} - {"gate", self.kind}:
            delattr(self, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return self.gate(getattr(self, f"_{self.kind}")(x))

    def _convolution(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)

    def _mixer(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixer(x.permute(0, 2, 1)).permute(0, 2, 1)

    def _pool(self, x: torch.Tensor) -> torch.Tensor:
        pool = functional.max_pool1d if self.largest else functional.avg_pool1d
        return pool(x.transpose(1, 2), 3, 1, 1).transpose(1, 2)

    def _gather(self, x: torch.Tensor) -> torch.Tensor:
        if self.largest:
            return x.index_select(1, self.order)
        return x.gather(1, self.order.view(1, -1, 1).expand(x.shape))

    def _scatter(self, x: torch.Tensor) -> torch.Tensor:
        where = self.order.view(1, -1, 1).expand(x.shape)
        return torch.zeros_like(x).scatter_add(1, where, x.tanh())

    def _running(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1) * 0.3

    def _context(self, x: torch.Tensor) -> torch.Tensor:
        middle = x.amax(1, keepdim=True) if self.largest else x.mean(1, keepdim=True)
        return x * middle.sigmoid() + x.var(-1, keepdim=True)

    def _shift(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, 1:], x[:, :1]], 1) if self.largest else x.roll(1, 1) + x.flip(1)


class RootMeanSquare(nn.Module):
    """RMS norm written out, as many models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def norm(draw: Random, width: int) -> nn.Module:
    """A layer norm or an RMS norm."""
    makers = (nn.LayerNorm, nn.LayerNorm, RootMeanSquare, nn.RMSNorm)
    return draw.choice(makers)(width)


def layer(draw: Random, width: int, length: int, drop: float) -> nn.Module:
    """A random layer."""
    kind = draw.choices(("feed", "gated", "attention", "experts", "along"), (3, 2, 4, 2, 3))[0]
    if kind == "feed":
        return FeedForward(draw, width, drop)
    if kind == "gated":
        return Gated(draw, width, drop)
    if kind == "attention":
        return Attention(draw, width, length, drop)
    return Experts(draw, width) if kind == "experts" else Along(draw, width, length)
