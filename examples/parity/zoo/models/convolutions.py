"""Family 6: torch.nn of images, sounds and volumes: convolutions, pools, norms, paddings, resizing."""
# ruff: noqa: D102

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from examples.parity.zoo.entry import entry

_MODES: tuple[Literal["circular", "reflect", "replicate"], ...] = ("circular", "reflect", "replicate")


class Pooled(nn.Module):
    """A core on images, sounds or volumes, flattened, under a head that finds its width by itself."""

    def __init__(self, core: nn.Module, width: int) -> None:
        super().__init__()
        self.core, self.head = core, nn.Linear(width, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.core(x).flatten(1)), y)


def plain_convolutions() -> nn.Module:
    """3x3, relu, a max pool."""
    return Pooled(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), 8 * 16)


def grouped_convolutions() -> nn.Module:
    """Groups, depthwise, pointwise."""
    parts = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1, groups=3), nn.Conv2d(6, 6, 3, padding=1, groups=6)
    return Pooled(nn.Sequential(*parts, nn.Conv2d(6, 4, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(2)), 16)


def dilated_convolutions() -> nn.Module:
    """Dilation 2, stride 2, an even kernel, padding "same"."""
    parts = nn.Conv2d(3, 6, 3, padding=2, dilation=2), nn.Conv2d(6, 6, 4, padding="same"), nn.Conv2d(6, 6, 2, stride=2)
    return Pooled(nn.Sequential(*parts), 6 * 16)


def transposed_convolutions() -> nn.Module:
    """Down, and up with output_padding, groups in the way up."""
    parts = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1, groups=2)
    return Pooled(nn.Sequential(*parts, nn.AvgPool2d(4)), 16)


def circular_convolutions() -> nn.Module:
    """padding_mode circular, reflect, replicate."""
    parts = [nn.Conv2d(3 if not i else 6, 6, 3, padding=1, padding_mode=kind) for i, kind in enumerate(_MODES)]
    return Pooled(nn.Sequential(*parts, nn.AdaptiveMaxPool2d(2)), 24)


def sound_convolutions() -> nn.Module:
    """1d: causal padding by ConstantPad1d, dilation, a transposed one."""
    parts = nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(2, 6, 3), nn.Tanh(), nn.Conv1d(6, 6, 3, dilation=2, padding=2)
    return Pooled(nn.Sequential(*parts, nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1), nn.AvgPool1d(4)), 24)


def volume_convolutions() -> nn.Module:
    """3d: a convolution, batch norm, pools."""
    parts = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1)
    return Pooled(nn.Sequential(*parts), 4)


def group_normed() -> nn.Module:
    """GroupNorm and InstanceNorm between convolutions."""
    parts = nn.Conv2d(3, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.InstanceNorm2d(6)
    return Pooled(nn.Sequential(*parts, nn.LPPool2d(2, 2)), 24)


def local_response() -> nn.Module:
    """AlexNet's: LocalResponseNorm, overlapping pools with ceil_mode."""
    parts = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2, ceil_mode=True)
    return Pooled(nn.Sequential(*parts), 6 * 9)


def batch_normed() -> nn.Module:
    """Convolution, batch norm, twice."""
    parts = [
        nn.Sequential(nn.Conv2d(3 if not i else 6, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()) for i in (0, 1)
    ]
    return Pooled(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1)), 6)


def layer_normed_images() -> nn.Module:
    """LayerNorm over (channels, height, width)."""
    return Pooled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm([4, 6, 6]), nn.ReLU(), nn.AvgPool2d(2, 2)), 36)


def paddings() -> nn.Module:
    """ReflectionPad, ReplicationPad, ZeroPad, CircularPad, negative padding."""
    pads = nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), nn.ZeroPad2d((1, 0, 0, 1)), nn.CircularPad2d(1)
    return Pooled(nn.Sequential(nn.Conv2d(3, 2, 1), *pads, nn.ZeroPad2d(-2), nn.Conv2d(2, 2, 3)), 2 * 9 * 9)


def shuffled_pixels() -> nn.Module:
    """PixelUnshuffle, PixelShuffle, ChannelShuffle."""
    parts = nn.PixelUnshuffle(2), nn.Conv2d(12, 12, 1), nn.ChannelShuffle(3), nn.PixelShuffle(2), nn.AvgPool2d(2)
    return Pooled(nn.Sequential(*parts), 3 * 16)


def resized() -> nn.Module:
    """Upsample: nearest, bilinear with corners, bicubic."""
    parts = nn.Conv2d(3, 2, 3, stride=2), nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 3)
    up = nn.Upsample(size=(7, 7), mode="bilinear", align_corners=True), nn.Upsample(size=5, mode="bicubic")
    return Pooled(nn.Sequential(*parts, *up), 50)


def dropped_channels() -> nn.Module:
    """Dropout2d with p=0 and a stochastic depth of 0."""
    return Pooled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.0), nn.ReLU(), nn.MaxPool2d(3)), 16)


class Unpooled(nn.Module):
    """SegNet: max pool with indices, unpooled again."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h, where = f.max_pool2d(self.down(x), 2, return_indices=True)
        return f.mse_loss(self.up(f.max_unpool2d(torch.relu(h), where, (2, 2))), target)


class UnfoldFold(nn.Module):
    """A local linear layer by unfold and fold."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3 * 9, 3 * 9)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        patches = f.unfold(x, 3, padding=1).transpose(1, 2)
        made = f.fold(torch.tanh(self.mix(patches)).transpose(1, 2), x.shape[-2:], 3, padding=1)
        return f.mse_loss(made / 9, target)


class SpatialTransformer(nn.Module):
    """affine_grid and grid_sample with a learned theta for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Linear(3 * 64, 6)
        nn.init.zeros_(self.locate.weight)
        self.locate.bias.data.copy_(torch.tensor([1.0, 0.1, 0, 0, 1, 0.05]))
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        theta = self.locate(x.flatten(1)).view(-1, 2, 3)
        grid = f.affine_grid(theta, list(x.shape), align_corners=False)
        return f.mse_loss(self.conv(f.grid_sample(x, grid, align_corners=False)), target)


class DynamicFilters(nn.Module):
    """A kernel for each image: rows become groups of one convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Linear(3, 3 * 3 * 9)
        self.out = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        n, c, h, w = x.shape
        kernels = self.make(x.mean((2, 3))).view(n * c, c, 3, 3)
        made = f.conv2d(x.reshape(1, n * c, h, w), kernels, padding=1, groups=n).view(n, c, h, w)
        return f.mse_loss(self.out(made), target)


class FramesAsRows(nn.Module):
    """Video: frames folded into the rows, a 2d net, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        n, t = x.shape[:2]
        h = self.net(x.reshape(n * t, *x.shape[2:])).view(n, t, -1)
        return f.cross_entropy(self.head(h.mean(1)), y)


class FramesNormed(FramesAsRows):
    """The same with a batch norm over rows and frames."""

    def __init__(self) -> None:
        super().__init__()
        self.net.insert(1, nn.BatchNorm2d(4))


class BlurPool(nn.Module):
    """A fixed blur kernel, expanded to each channel; reflect padding by f.pad; interpolate by a factor."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = f.pad(self.conv(x), (1, 1, 1, 1), mode="reflect")
        h = f.conv2d(h, self.kernel.to(h.dtype).expand(3, 1, 3, 3), stride=2, groups=3)
        return f.mse_loss(f.interpolate(h, scale_factor=2, mode="bilinear"), target)


class ChannelsLast(nn.Module):
    """ConvNeXt's block: depthwise, permute, LayerNorm, products, a layer scale, permute back."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 6, 2, stride=2), nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.norm, self.wide, self.narrow = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)
        self.scale = nn.Parameter(1e-1 * torch.ones(6))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))
        h = self.scale * self.narrow(f.gelu(self.wide(h)))
        return f.cross_entropy(self.head((x + h.permute(0, 3, 1, 2)).mean((-2, -1))), y)


class OwnKernels(nn.Module):
    """Kernels and biases that each row makes for itself, in groups of one convolution over all rows, then of a
    transposed one, as StyleGAN 2 modulates and siamese trackers correlate."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.biases, self.widening = nn.Linear(3, 4 * 3 * 9), nn.Linear(3, 4), nn.Linear(3, 4 * 3 * 4)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        rows, style = x.shape[0], x.mean((2, 3))
        images, bias = x.reshape(1, rows * 3, 8, 8), self.biases(style).view(-1)
        h = f.conv2d(images, self.kernels(style).view(rows * 4, 3, 3, 3), bias, stride=2, padding=1, groups=rows)
        wide = f.conv_transpose2d(h.relu(), self.widening(style).view(-1, 3, 2, 2), stride=2, groups=rows)
        return f.mse_loss(wide.view(rows, 3, 8, 8), target)


_IMAGE, _PAIR = "x: normal 8 3 8 8; y: int4 8", "x: normal 8 3 8 8; target: normal 8 3 8 8"
_SPACE = ("height", "width")
ENTRIES = (
    *(
        entry(build, _IMAGE, axes=_SPACE)
        for build in (
            plain_convolutions, grouped_convolutions, dilated_convolutions, transposed_convolutions,
            circular_convolutions, group_normed, local_response, batch_normed, layer_normed_images, paddings,
            shuffled_pixels, resized, dropped_channels, ChannelsLast,
        )
    ),
    *(entry(build, _PAIR, axes=_SPACE) for build in (Unpooled, UnfoldFold, SpatialTransformer)),
    *(entry(build, _PAIR, axes=_SPACE) for build in (DynamicFilters, BlurPool, OwnKernels)),
    entry(sound_convolutions, "x: normal 8 2 12; y: int4 8"),
    entry(volume_convolutions, "x: normal 8 1 4 4 4; y: int4 8"),
    *(entry(build, "x: normal 8 3 2 6 6; y: int4 8") for build in (FramesAsRows, FramesNormed)),
)  # fmt: skip
