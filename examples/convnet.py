"""A convnet as VGG is one (arXiv:1409.1556): early layers compute much, the last hold most of the weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

# Output channels of the convolutions of configuration D; 0 halves height and width.
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class ConvNet(nn.Module):
    """3 x 3 convolutions, then three products; with labels it returns the loss."""

    def __init__(self, channels: Sequence[int], *, pixels: int, hidden: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for count in channels:
            if count:
                layers.append(nn.Sequential(nn.Conv2d(before, count, 3, padding=1), nn.ReLU()))
                before = count
            else:
                layers.append(nn.MaxPool2d(2))
                pixels //= 2
        layers.append(nn.Sequential(nn.Flatten(), nn.Linear(before * pixels**2, hidden), nn.ReLU()))
        layers.append(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()))
        layers.append(nn.Linear(hidden, classes))
        self.layers = nn.ModuleList(layers)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy of `images` (rows, 3, pixels, pixels)."""
        for layer in self.layers:
            images = layer(images)
        return nn.functional.cross_entropy(images, labels)


def vgg16() -> ConvNet:
    """VGG-16: 138 M parameters, 124 M of them in the last three layers."""
    return ConvNet(VGG16, pixels=224, hidden=4096, classes=1000)


def small() -> ConvNet:
    """The same on a few pixels."""
    return ConvNet((8, 8, 0), pixels=8, hidden=64, classes=10)


# What commands name where any convnet will do.
build = vgg16
