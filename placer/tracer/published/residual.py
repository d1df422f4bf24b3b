"""Residual networks of bottlenecks (arXiv:1512.03385), with groups (1611.05431), with squeezing (1709.01507).

ResNet-50 has the stride in its 3x3 convolutions (v1.5), as the published tables run it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

# Bottlenecks of each part; groups; channels of a group in the first part; squeeze and excitation.
NETWORKS = {
    "resnet50": ((3, 4, 6, 3), 1, 64, False),
    "resnext101": ((3, 4, 23, 3), 32, 4, False),
    "se-resnext101": ((3, 4, 23, 3), 32, 4, True),
}
STEM, WIDER, SQUEEZE = 64, 4, 16


class Residual(nn.Module):
    """Stem, four parts of bottlenecks, mean over the image, one product; the loss is in the model."""

    def __init__(self, counts: tuple[int, ...], groups: int, width: int, *, squeezed: bool, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_normed(3, STEM, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, entering = [], STEM
        for part, count in enumerate(counts):
            inner, leaving = groups * width * 2**part, STEM * WIDER * 2**part
            for number in range(count):
                stride = 2 if part and not number else 1
                blocks.append(Bottleneck(entering, inner, leaving, stride, groups, squeezed=squeezed))
                entering = leaving
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(entering, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of images (batch, 3, height, width) with labels (batch)."""
        values = self.stem(images)
        for block in self.blocks:
            values = block(values)
        return functional.cross_entropy(self.head(values.mean((2, 3))).float(), labels)


class Bottleneck(nn.Module):
    """1x1, 3x3 in groups, 1x1 convolutions beside the shortcut."""

    def __init__(self, entering: int, inner: int, leaving: int, stride: int, groups: int, *, squeezed: bool) -> None:
        super().__init__()
        self.first = _normed(entering, inner, 1)
        self.second = _normed(inner, inner, 3, stride, groups)
        self.third = _normed(inner, leaving, 1)
        narrow = leaving // SQUEEZE
        self.squeeze = nn.Sequential(nn.Linear(leaving, narrow), nn.ReLU(), nn.Linear(narrow, leaving), nn.Sigmoid())
        if not squeezed:
            self.squeeze = nn.Sequential()
        self.shortcut = nn.Sequential() if entering == leaving else _normed(entering, leaving, 1, stride)

    def forward(self, values: Tensor) -> Tensor:
        """The block's result, of its shortcut's shape."""
        made = self.third(functional.relu(self.second(functional.relu(self.first(values)))))
        if len(self.squeeze):
            made = made * self.squeeze(made.mean((2, 3)))[:, :, None, None]
        return functional.relu(made + self.shortcut(values))


def residual_network(kind: str, classes: int) -> nn.Module:
    """One of `NETWORKS`."""
    counts, groups, width, squeezed = NETWORKS[kind]
    return Residual(counts, groups, width, squeezed=squeezed, classes=classes)


def _normed(entering: int, leaving: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(entering, leaving, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(leaving)
    )
