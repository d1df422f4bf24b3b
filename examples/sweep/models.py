"""The convnets of published scaling tables: ResNets and MobileNet v2 as transformers builds them, AlexNet, VGG-16.

The v2 ResNets, which normalise before each convolution, have the convolutions of the first ones; AlexNet is that of one
GPU (arXiv:1404.5997).
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import (
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from examples.convnet import vgg16

__all__ = ["alexnet", "mobilenet_v2", "resnet50", "resnet101", "resnet152", "vgg16"]

CLASSES = 1000


def resnet50() -> nn.Module:
    """25.6 M parameters, 102 MB of gradients."""
    return _resnet(3, 4, 6, 3)


def resnet101() -> nn.Module:
    """44.5 M parameters."""
    return _resnet(3, 4, 23, 3)


def resnet152() -> nn.Module:
    """60.2 M parameters."""
    return _resnet(3, 8, 36, 3)


def mobilenet_v2() -> nn.Module:
    """3.5 M parameters, convolutions of one channel each; without the dropout before its last product."""
    model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=CLASSES))
    model.dropout = nn.Identity()  # it writes in place, which is not captured
    return model


class AlexNet(nn.Module):
    """Five convolutions, then three products that hold 94% of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Linear(256 * 36, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy of `images` (rows, 3, 224, 224)."""
        return nn.functional.cross_entropy(self.classifier(self.features(images)), labels)


def alexnet() -> nn.Module:
    """61 M parameters."""
    return AlexNet()


def _resnet(*depths: int) -> nn.Module:
    return ResNetForImageClassification(ResNetConfig(depths=list(depths), num_labels=CLASSES))
