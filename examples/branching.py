"""Models that branch: parts that need nothing of each other could compute at the same time on different devices.

    two_towers    two stacks of layers for two inputs, one head (Huang et al. 2013, Covington et al. 2016)
    clip          CLIP ViT-B/32 with its contrastive loss, which mixes all rows: replicas cannot divide the batch
    inception     Inception v3 (Szegedy et al. 2016) without its auxiliary head: four branches in most of its modules
    multi_task    one trunk, four deep heads with a loss each
    dlrm          26 tables of embeddings, two perceptrons, their products (Naumov et al. 2019)

Each has a small twin. `BRANCHING[name]` is (full size, small twin); `branching_batch(model, rows)` the shapes of a
batch. Like `examples.models`, nothing here knows of placer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
import transformers
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """A layer norm and a perceptron beside the way through."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x of shape (rows, width), and what is added to it."""
        made: torch.Tensor = x + self.narrow(functional.gelu(self.widen(self.norm(x))))
        return made


class TwoTowers(nn.Module):
    """forward(query, item, labels): the mean cross-entropy of a head over what both towers make."""

    def __init__(self, width: int, layers: int, classes: int = 1000):
        super().__init__()
        self.query = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.item = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.head = nn.Linear(2 * width, classes)
        self.width = width

    def forward(self, query: torch.Tensor, item: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        both = torch.cat([self.query(query), self.item(item)], dim=1)
        return functional.cross_entropy(self.head(both), labels)


class MultiTask(nn.Module):
    """forward(x, targets): the sum of the mean squared errors of `tasks` heads, each a stack of its own."""

    def __init__(self, width: int, trunk: int, layers: int, tasks: int = 4):
        super().__init__()
        self.trunk = nn.Sequential(*(Residual(width) for _ in range(trunk)))
        self.heads = nn.ModuleList(
            nn.Sequential(*(Residual(width) for _ in range(layers)), nn.Linear(width, 1)) for _ in range(tasks)
        )
        self.width = width

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss; targets of shape (rows, tasks)."""
        shared = self.trunk(x)
        losses = [functional.mse_loss(head(shared)[:, 0], targets[:, task]) for task, head in enumerate(self.heads)]
        return torch.stack(losses).sum()


class Perceptron(nn.Sequential):
    """Linear layers with ReLU between and behind them."""

    def __init__(self, widths: Sequence[int]):
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers)


class Dlrm(nn.Module):
    """forward(dense, sparse, labels): click probability's mean binary cross-entropy.

    dense (rows, features), sparse (rows, tables, hot): the ids of each table, whose vectors are summed.
    """

    below: torch.Tensor

    def __init__(self, tables: int, entries: int, width: int, bottom: Sequence[int], top: Sequence[int], hot: int = 1):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(entries, width, mode="sum") for _ in range(tables))
        self.bottom = Perceptron((*bottom, width))
        pairs = (tables + 1) * tables // 2
        self.top = Perceptron((width + pairs, *top))
        self.head = nn.Linear(top[-1], 1)
        self.features, self.entries, self.hot = bottom[0], entries, hot
        self.register_buffer("below", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss; labels of shape (rows,)."""
        x = self.bottom(dense)
        looked_up = [table(sparse[:, number]) for number, table in enumerate(self.tables)]
        every = torch.stack([x, *looked_up], dim=1)
        products = every @ every.transpose(1, 2)
        pairs = products[:, self.below[0], self.below[1]]
        logits = self.head(self.top(torch.cat([x, pairs], dim=1)))[:, 0]
        return functional.binary_cross_entropy_with_logits(logits, labels)


class Clip(nn.Module):
    """forward(input_ids, pixel_values): CLIP's contrastive loss over all rows of the batch."""

    def __init__(self, config: transformers.CLIPConfig):
        super().__init__()
        self.clip = transformers.CLIPModel(config)

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
        """The loss."""
        loss: torch.Tensor = self.clip(input_ids=input_ids, pixel_values=pixel_values, return_loss=True).loss
        return loss


class Convolution(nn.Sequential):
    """A convolution with batch norm and ReLU, as Inception has it."""

    def __init__(self, inputs: int, outputs: int, size: int | tuple[int, int], stride: int = 1, padding: object = 0):
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, padding, bias=False),  # type: ignore[arg-type]
            nn.BatchNorm2d(outputs, eps=0.001),
            nn.ReLU(),
        )


class Branches(nn.Module):
    """Branches over the same images, concatenated by their channels."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What all branches make of x."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), Convolution(inputs, outputs, 1))


def _module_a(inputs: int, pooled: int, by: int) -> Branches:
    """35 x 35 (figure 5 of the paper)."""
    return Branches(
        Convolution(inputs, 64 // by, 1),
        nn.Sequential(Convolution(inputs, 48 // by, 1), Convolution(48 // by, 64 // by, 5, padding=2)),
        nn.Sequential(
            Convolution(inputs, 64 // by, 1),
            Convolution(64 // by, 96 // by, 3, padding=1),
            Convolution(96 // by, 96 // by, 3, padding=1),
        ),
        _pooled(inputs, pooled),
    )


def _module_c(inputs: int, inner: int, by: int) -> Branches:
    """17 x 17 (figure 6): 7 x 7 as 1 x 7 and 7 x 1."""
    outputs, flat, tall = 192 // by, (1, 7), (7, 1)
    return Branches(
        Convolution(inputs, outputs, 1),
        nn.Sequential(
            Convolution(inputs, inner, 1),
            Convolution(inner, inner, flat, padding=(0, 3)),
            Convolution(inner, outputs, tall, padding=(3, 0)),
        ),
        nn.Sequential(
            Convolution(inputs, inner, 1),
            Convolution(inner, inner, tall, padding=(3, 0)),
            Convolution(inner, inner, flat, padding=(0, 3)),
            Convolution(inner, inner, tall, padding=(3, 0)),
            Convolution(inner, outputs, flat, padding=(0, 3)),
        ),
        _pooled(inputs, outputs),
    )


def _module_e(inputs: int, by: int) -> Branches:
    """8 x 8 (figure 7)."""
    wide = 384 // by
    split = partial(Branches, Convolution(wide, wide, (1, 3), padding=(0, 1)))
    return Branches(
        Convolution(inputs, 320 // by, 1),
        nn.Sequential(Convolution(inputs, wide, 1), split(Convolution(wide, wide, (3, 1), padding=(1, 0)))),
        nn.Sequential(
            Convolution(inputs, 448 // by, 1),
            Convolution(448 // by, wide, 3, padding=1),
            Branches(Convolution(wide, wide, (1, 3), padding=(0, 1)), Convolution(wide, wide, (3, 1), padding=(1, 0))),
        ),
        _pooled(inputs, 192 // by),
    )


class Inception(nn.Module):
    """Inception v3; `by` divides all its channels. forward(images, labels): the mean cross-entropy."""

    def __init__(self, by: int = 1, classes: int = 1000, image_size: int = 299):
        super().__init__()
        self.image_size = image_size
        a, c, e = 288 // by, 768 // by, 2048 // by
        self.stem = nn.Sequential(
            Convolution(3, 32 // by, 3, stride=2),
            Convolution(32 // by, 32 // by, 3),
            Convolution(32 // by, 64 // by, 3, padding=1),
            nn.MaxPool2d(3, 2),
            Convolution(64 // by, 80 // by, 1),
            Convolution(80 // by, 192 // by, 3),
            nn.MaxPool2d(3, 2),
        )
        self.mixed = nn.ModuleList(
            [
                _module_a(192 // by, 32 // by, by),
                _module_a(256 // by, 64 // by, by),
                _module_a(a, 64 // by, by),
                Branches(
                    Convolution(a, 384 // by, 3, stride=2),
                    nn.Sequential(
                        Convolution(a, 64 // by, 1),
                        Convolution(64 // by, 96 // by, 3, padding=1),
                        Convolution(96 // by, 96 // by, 3, stride=2),
                    ),
                    nn.MaxPool2d(3, 2),
                ),
                *(_module_c(c, inner // by, by) for inner in (128, 160, 160, 192)),
                Branches(
                    nn.Sequential(Convolution(c, 192 // by, 1), Convolution(192 // by, 320 // by, 3, stride=2)),
                    nn.Sequential(
                        Convolution(c, 192 // by, 1),
                        Convolution(192 // by, 192 // by, (1, 7), padding=(0, 3)),
                        Convolution(192 // by, 192 // by, (7, 1), padding=(3, 0)),
                        Convolution(192 // by, 192 // by, 3, stride=2),
                    ),
                    nn.MaxPool2d(3, 2),
                ),
                _module_e(1280 // by, by),
                _module_e(e, by),
            ]
        )
        self.head = nn.Linear(e, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = self.stem(images)
        for module in self.mixed:
            x = module(x)
        return functional.cross_entropy(self.head(x.mean(dim=(2, 3))), labels)


def two_towers() -> nn.Module:
    """Two towers of 12 layers of width 1024."""
    return TwoTowers(1024, 12)


def tiny_two_towers() -> nn.Module:
    """Two towers of 3 layers of width 16."""
    return TwoTowers(16, 3, classes=5)


def multi_task() -> nn.Module:
    """A trunk of 4 layers and 4 heads of 8 layers of width 1024."""
    return MultiTask(1024, 4, 8)


def tiny_multi_task() -> nn.Module:
    """A trunk of 1 layer and 4 heads of 2 layers of width 16."""
    return MultiTask(16, 1, 2)


def dlrm() -> nn.Module:
    """MLPerf's sizes (Criteo) but for tables of 400,000 entries each: 26 tables of width 128."""
    return Dlrm(26, 400_000, 128, bottom=(13, 512, 256), top=(1024, 1024, 512, 256))


def tiny_dlrm() -> nn.Module:
    """4 tables of 20 entries of width 8."""
    return Dlrm(4, 20, 8, bottom=(5, 16), top=(16, 8), hot=2)


def clip() -> nn.Module:
    """CLIP ViT-B/32, 151 M parameters (Radford et al. 2021)."""
    return Clip(transformers.CLIPConfig())


def tiny_clip() -> nn.Module:
    """CLIP of two layers a tower."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Clip(
        transformers.CLIPConfig(
            text_config={**sizes, "vocab_size": 40, "max_position_embeddings": 12, "eos_token_id": 1},
            vision_config={**sizes, "image_size": 16, "patch_size": 8},
            projection_dim=8,
        )
    )


def inception() -> nn.Module:
    """Inception v3, 24 M parameters."""
    return Inception()


def tiny_inception() -> nn.Module:
    """Inception v3 of a sixteenth of the channels for images of 75 x 75, the smallest it takes."""
    return Inception(by=16, classes=5, image_size=75)


# Name -> (full size, small twin).
BRANCHING: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "two_towers": (two_towers, tiny_two_towers),
    "clip": (clip, tiny_clip),
    "inception": (inception, tiny_inception),
    "multi_task": (multi_task, tiny_multi_task),
    "dlrm": (dlrm, tiny_dlrm),
}


def branching_batch(model: nn.Module, rows: int) -> dict[str, torch.Tensor]:
    """A random batch of `rows` rows for any model of this file."""
    if isinstance(model, TwoTowers):
        towers = {name: torch.randn(rows, model.width) for name in ("query", "item")}
        return {**towers, "labels": torch.randint(0, model.head.out_features, (rows,))}
    if isinstance(model, MultiTask):
        return {"x": torch.randn(rows, model.width), "targets": torch.randn(rows, len(model.heads))}
    if isinstance(model, Dlrm):
        sparse = torch.randint(0, model.entries, (rows, len(model.tables), model.hot))
        return {"dense": torch.randn(rows, model.features), "sparse": sparse, "labels": torch.rand(rows).round()}
    if isinstance(model, Clip):
        text, vision = model.clip.config.text_config, model.clip.config.vision_config
        images = torch.randn(rows, 3, vision.image_size, vision.image_size)
        ids = torch.randint(2, text.vocab_size, (rows, text.max_position_embeddings))
        return {"input_ids": ids, "pixel_values": images}
    assert isinstance(model, Inception)
    images = torch.randn(rows, 3, model.image_size, model.image_size)
    return {"images": images, "labels": torch.randint(0, model.head.out_features, (rows,))}
