"""Family 9: constants that are neither parameters nor buffers, tables made late, noise."""
# ruff: noqa: D102

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry
from examples.parity.zoo.models.second.base import Base


class PlainConstants(Base):
    """Mean and deviation as plain float32 tensors on self, in a list and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.full((8,), 0.1)
        self.more: dict[str, Any] = {"std": torch.full((8,), 0.3), "scales": [torch.tensor(1.7), 0.9]}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = (x - self.mean) / self.more["std"] * self.more["scales"][0] * self.more["scales"][1]
        return super().forward(x, y)


class ConstantInDict(Base):
    """A plain tensor in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.more = {"std": torch.full((8,), 0.3)}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x / self.more["std"], y)


class ConstantInList(Base):
    """Plain tensors in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.full((8,), 0.3), torch.full((8,), 0.4)]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x * self.scales[0] * self.scales[1], y)


_MODULE_MEAN = torch.full((8,), 0.1)


class ConstantOfModule(Base):
    """A tensor at the top of the file (IMAGENET_MEAN)."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x - _MODULE_MEAN, y)


@functools.lru_cache(maxsize=8)
def cached_mask(t: int) -> Tensor:
    """A causal mask of a length, kept."""
    return torch.triu(torch.full((t, t), float("-inf")), 1)


class CachedMask(nn.Module):
    """A mask from a function under lru_cache, float32."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        h = (q @ k.transpose(1, 2) + cached_mask(x.shape[1]).to(q.dtype)).softmax(-1) @ v
        return f.cross_entropy(self.head(self.out(h).mean(1)), y)


class LazyRotary(nn.Module):
    """Tables of cosines made in the first forward and kept on self, as a plain attribute and by register_buffer."""

    causal: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4)
        self.cos: Tensor | None = None

    def tables(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.cos is None or self.cos.shape[0] < x.shape[1]:
            angles = torch.outer(
                torch.arange(x.shape[1], dtype=x.dtype), torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=x.dtype)
            )
            self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            self.register_buffer(
                "causal", torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), persistent=False
            )
        return self.cos, self.sin

    def turned(self, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        cos, sin = self.tables(x)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = self.turned(q, cos, sin) @ self.turned(k, cos, sin).transpose(1, 2)
        h = scores.masked_fill(~self.causal, float("-inf")).softmax(-1) @ v
        return f.cross_entropy(self.head(self.out(h).mean(1)), y)


class LazyAttribute(nn.Module):
    """A table made in the first forward, a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.table: Tensor | None = None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1], dtype=x.dtype, device=x.device).cos().unsqueeze(1)
        return f.cross_entropy(self.head(torch.tanh(self.body(x * self.table)).mean(1)), y)


class LazyBuffer(nn.Module):
    """A table made in the first forward by register_buffer."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer(
                "table", torch.arange(x.shape[1], device=x.device).to(x.dtype).cos().unsqueeze(1), persistent=False
            )
        return f.cross_entropy(self.head(torch.tanh(self.body(x * self.table)).mean(1)), y)


class LazyDictCache(LazyAttribute):
    """A cache by length in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        t = x.shape[1]
        if t not in self.cache:
            self.cache[t] = torch.arange(t, dtype=x.dtype, device=x.device).cos().unsqueeze(1)
        return f.cross_entropy(self.head(torch.tanh(self.body(x * self.cache[t])).mean(1)), y)


class SeededNoise(Base):
    """Noise by a generator seeded in forward."""

    def between(self, h: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return h + 0.1 * torch.randn(h.shape, generator=generator, dtype=h.dtype)


class NumpyMask(Base):
    """A mask by numpy with the shape of the batch."""

    def between(self, h: Tensor) -> Tensor:
        mask = np.random.RandomState(3).rand(*h.shape) > 0.2
        return h * torch.from_numpy(mask).to(h.dtype)


_PLAIN = (PlainConstants, ConstantInDict, ConstantInList, ConstantOfModule, SeededNoise, NumpyMask)
_OVER_LENGTH = (CachedMask, LazyRotary, LazyAttribute, LazyBuffer, LazyDictCache)
ENTRIES = (
    *(entry(build, "x: normal 8 6 8; y: int4 8") for build in _OVER_LENGTH),
    *(entry(build, "x: normal 8 8; y: int4 8") for build in _PLAIN),
)
