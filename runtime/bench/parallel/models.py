"""What is trained: classifiers of images of 32 x 32 pixels, and pictures of ten classes that are made here.

    resnet50     23.5 M parameters, as transformers builds it
    mobilenet_v2  2.2 M, convolutions of one channel each
    alexnet      20.3 M, nearly all in its products: much to sum for little computation
    transformer   0.8 M, a ViT of 4 layers

Batch norms are group norms here: a batch norm takes mean and variance of the rows a process has, so that no two numbers
of processes would compute the same, and nothing could be checked. Nothing is dropped, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import torch
from torch import nn
from torch.nn import functional
from transformers import (
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

CLASSES = 10
PIXELS = 32
# Groups of a norm, where so many divide its channels.
GROUPS = 8
# Of the coarse pattern that stands for a class, and by how many pixels pictures of it are shifted at most.
COARSE, SHIFT = 8, 3
NOISE = 0.3


class Classifier(nn.Module):
    """A body that gives scores, and the mean cross entropy of labels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """(rows, classes) of images (rows, 3, 32, 32)."""
        found = self.body(images)
        made: torch.Tensor = found if isinstance(found, torch.Tensor) else found.logits
        return made

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return functional.cross_entropy(self.scores(images), labels)


def classifier(name: str) -> Classifier:
    """The model of this name, with weights that every process makes alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Classifier(MODELS[name]())
        _without_batch_norms(made)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Images and their classes."""

    images: torch.Tensor
    labels: torch.Tensor

    def part(self, first: int, count: int) -> dict[str, torch.Tensor]:
        """`count` rows from `first` on, from the beginning again behind the last."""
        rows = torch.arange(first, first + count) % len(self.labels)
        return {"images": self.images[rows], "labels": self.labels[rows]}


def pictures(count: int, seed: int) -> Pictures:
    """Each the coarse pattern of its class, shifted, brighter or darker, with noise.

    Patterns are the same for all seeds: what is learnt of one set holds for another.
    """
    patterns = _drawn(0, CLASSES, 3, COARSE, COARSE)
    whole = functional.interpolate(patterns, size=(PIXELS, PIXELS), mode="bilinear")
    generator = torch.Generator().manual_seed(1 + seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    moved = torch.randint(-SHIFT, SHIFT + 1, (count, 2), generator=generator).tolist()
    images = torch.stack(
        [torch.roll(whole[label], shift, dims=(1, 2)) for label, shift in zip(labels.tolist(), moved, strict=True)]
    )
    bright = 0.5 + torch.rand((count, 1, 1, 1), generator=generator)
    return Pictures(images=images * bright + NOISE * torch.randn(images.shape, generator=generator), labels=labels)


def accuracy(name: str, weights: dict[str, torch.Tensor], held_out: Pictures) -> float:
    """Share of pictures that the model with these weights puts into their class."""
    model = classifier(name)
    model.load_state_dict(weights)
    model.eval()
    with torch.no_grad():
        right = model.scores(held_out.images).argmax(1) == held_out.labels
    return float(right.float().mean())


def _drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _without_batch_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(gcd(GROUPS, child.num_features), child.num_features))
        else:
            _without_batch_norms(child)


def _resnet50() -> nn.Module:
    return ResNetForImageClassification(ResNetConfig(num_labels=CLASSES))  # type: ignore[no-any-return]


def _mobilenet_v2() -> nn.Module:
    # Its own padding follows TensorFlow and reads the size of each image, which is not captured.
    config = MobileNetV2Config(num_labels=CLASSES, image_size=PIXELS, tf_padding=False)
    model = MobileNetV2ForImageClassification(config)
    model.dropout = nn.Identity()
    return model  # type: ignore[no-any-return]


def _alexnet() -> nn.Module:
    """AlexNet of one GPU (arXiv:1404.5997), with a first stride of 2 and one pooling less for images this small."""
    made = nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=2, padding=5), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(),
        nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES),
    )  # fmt: skip
    for module in made:  # with torch's own first weights it has learnt nothing after 32 steps
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return made


def _transformer() -> nn.Module:
    config = ViTConfig(
        num_labels=CLASSES, image_size=PIXELS, patch_size=4, hidden_size=128, num_hidden_layers=4,
        num_attention_heads=4, intermediate_size=512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)  # type: ignore[no-any-return]


#: With SGD and this momentum; ten times the rate of ResNet-50's makes its loss grow.
MOMENTUM = 0.9
RATES = {"resnet50": 0.002, "mobilenet_v2": 0.01, "alexnet": 0.0005, "transformer": 0.02}

#: What makes the body of a model, by its name.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": _resnet50,
    "mobilenet_v2": _mobilenet_v2,
    "alexnet": _alexnet,
    "transformer": _transformer,
}
