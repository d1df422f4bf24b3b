"""Random layers on (rows, channels, *sizes) of one to three dims: convolutions, pooling, norms over channels.

A maker says how the grid changes: `Grid` in, layer and `Grid` out. Norms over the batch get at least `FEW` elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import nn
from torch.nn import functional

# Elements per channel of one row, under which a batch norm would divide by next to nothing.
FEW = 4
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
MEANS: dict[int, Callable[..., torch.Tensor]] = {
    1: functional.adaptive_avg_pool1d, 2: functional.adaptive_avg_pool2d, 3: functional.adaptive_avg_pool3d,
}  # fmt: skip
AVERAGE_POOLS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Channels and sizes of a value."""

    channels: int
    sizes: tuple[int, ...]

    @property
    def dims(self) -> int:
        """Spatial dims."""
        return len(self.sizes)

    @property
    def elements(self) -> int:
        """Elements of a channel."""
        found = 1
        for size in self.sizes:
            found *= size
        return found


class Convolved(nn.Module):
    """A convolution of any stride, padding, dilation and groups, a norm, an activation, and a residual if it fits."""

    def __init__(self, draw: Random, grid: Grid, drop: float) -> None:
        super().__init__()
        kernel, dilation = draw.choice((1, 2, 3, 3)), draw.choice((1, 1, 2))
        stride = draw.choice((1, 1, 2)) if min(grid.sizes) > 3 else 1
        reach = dilation * (kernel - 1)
        padding = draw.choice((reach // 2, reach // 2, 0, 1)) if min(grid.sizes) > reach + 2 else (reach + 1) // 2
        padding = min(padding, max(kernel - 1, 0) * dilation)
        channels = draw.choice((grid.channels, grid.channels, 4, 8))
        groups = draw.choice([count for count in (1, 1, 2, 4) if grid.channels % count == channels % count == 0])
        sizes = tuple((size + 2 * padding - reach - 1) // stride + 1 for size in grid.sizes)
        self.grid = Grid(channels=channels, sizes=sizes)
        self.convolution = CONVOLUTIONS[grid.dims](
            grid.channels, channels, kernel, stride, padding, dilation, groups, bias=draw.random() < 0.5
        )
        self.norm = norm(draw, self.grid)
        self.residual = self.grid == grid and draw.random() < 0.6
        self.in_place = draw.random() < 0.3
        self.dropout = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next grid."""
        made = self.dropout(functional.relu(self.norm(self.convolution(x)), inplace=self.in_place))
        return x + made if self.residual else made


class Pooled(nn.Module):
    """Pooling: the largest or the mean of windows, or means down to given sizes."""

    def __init__(self, draw: Random, grid: Grid) -> None:
        super().__init__()
        self.kind = draw.choice(("largest", "mean", "adaptive"))
        self.window, self.stride = draw.choice(((2, 2), (3, 1), (3, 2), (2, 1)))
        self.padding = draw.choice((0, self.window // 2))
        self.ceil = draw.random() < 0.3
        shape = (1, grid.channels, *grid.sizes)
        self.target = tuple(max(2, size // 2) for size in grid.sizes)
        self.grid = replace(grid, sizes=tuple(self(torch.zeros(shape)).shape[2:]))
        self.scale = nn.Parameter(torch.ones(grid.channels, *(1,) * grid.dims))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next grid."""
        dims = x.dim() - 2
        scaled = x * self.scale if hasattr(self, "scale") else x
        if self.kind == "adaptive":
            return MEANS[dims](scaled, self.target)
        pool = MAX_POOLS[dims] if self.kind == "largest" else AVERAGE_POOLS[dims]
        return pool(scaled, self.window, self.stride, self.padding, ceil_mode=self.ceil)


class Hourglass(nn.Module):
    """Down by a strided convolution, up by a transposed one or by repeating, and together with what it came from."""

    def __init__(self, draw: Random, grid: Grid) -> None:
        super().__init__()
        self.down = CONVOLUTIONS[grid.dims](grid.channels, 2 * grid.channels, 2, 2)
        self.transposed = draw.random() < 0.5
        self.up = (
            TRANSPOSED[grid.dims](2 * grid.channels, grid.channels, 2, 2)
            if self.transposed
            else CONVOLUTIONS[grid.dims](2 * grid.channels, grid.channels, 1)
        )
        self.joined = CONVOLUTIONS[grid.dims](2 * grid.channels, grid.channels, 3, padding=1)
        self.grid = grid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same grid; its sizes are even."""
        low = functional.silu(self.down(x))
        high = self.up(low)
        if not self.transposed:
            high = functional.interpolate(high, scale_factor=2.0, mode="nearest")
        return self.joined(torch.cat([x, high], 1))


class Channels(nn.Module):
    """Products over channels beside a depthwise convolution (ConvNeXt), or channels weighted by what they hold (SE)."""

    def __init__(self, draw: Random, grid: Grid) -> None:
        super().__init__()
        self.weighted = draw.random() < 0.5
        self.depth = CONVOLUTIONS[grid.dims](grid.channels, grid.channels, 3, padding=1, groups=grid.channels)
        self.norm = nn.LayerNorm(grid.channels)
        self.wide = nn.Linear(grid.channels, 2 * grid.channels)
        self.back = nn.Linear(2 * grid.channels, grid.channels)
        self.grid = grid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same grid."""
        made = self.depth(x)
        dims = tuple(range(2, x.dim()))
        if self.weighted:
            share = self.back(functional.relu(self.wide(self.norm(made.mean(dims))))).sigmoid()
            return x + made * share.view(*share.shape, *(1,) * len(dims))
        last = self.back(functional.gelu(self.wide(self.norm(made.movedim(1, -1)))))
        return x + last.movedim(-1, 1)


def norm(draw: Random, grid: Grid) -> nn.Module:
    """Over the batch, over groups of channels, or none."""
    kind = draw.choice(("batch", "batch", "group", "none"))
    if kind == "batch" and grid.elements >= FEW:
        return BATCH_NORMS[grid.dims](grid.channels, eps=1e-3)
    if kind == "group" and grid.elements >= FEW:
        groups = draw.choice([count for count in (1, 2, 4) if grid.channels % count == 0])
        return nn.GroupNorm(groups, grid.channels, eps=1e-3)
    return nn.Identity()


def layer(draw: Random, grid: Grid, drop: float) -> tuple[nn.Module, Grid]:
    """A random layer and the grid it makes."""
    kind = draw.choices(("convolved", "pooled", "hourglass", "channels"), (5, 2, 1, 2))[0]
    if kind == "pooled" and min(grid.sizes) >= 4:
        pooled = Pooled(draw, grid)
        return pooled, pooled.grid
    if kind == "hourglass" and all(size % 2 == 0 for size in grid.sizes):
        return Hourglass(draw, grid), grid
    if kind == "channels":
        return Channels(draw, grid), grid
    convolved = Convolved(draw, grid, drop)
    return convolved, convolved.grid
