"""random_model(seed): a small model of random layers, with its inputs and where it drops.

    words    tokens -> embedding -> layers on sequences -> vocabulary loss, tied or not, or classes, or a distance
    images   image of one to three dims -> layers on grids -> classes, classes of each pixel, or a distance
    patches  image -> convolution -> layers on the sequence of its pixels -> classes

Residuals around layers, norms before or after them, skips from earlier layers, added or put beside each other. A third
of the models are `unruly`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch
from torch import nn
from torch.nn import functional

from examples.parity.differential import grids, sequences
from examples.parity.differential.grids import Grid
from examples.parity.differential.unruly import made_unruly

Shape = tuple[int, ...]
ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A model and the shapes and types of its inputs at ROWS rows. unruly: what it does beside its layers."""

    kind: str
    model: nn.Module
    batch: dict[str, tuple[Shape, torch.dtype]]
    unruly: str = ""


class Layer(nn.Module):
    """A layer on sequences with its norm, its residual, and what is put beside its input."""

    def __init__(self, draw: Random, width: int, length: int, drop: float, joined: bool) -> None:
        super().__init__()
        self.joined = nn.Linear(2 * width, width) if joined else None
        self.body = sequences.layer(draw, width, length, drop)
        self.norm = sequences.norm(draw, width)
        self.before = draw.random() < 0.7
        self.residual = draw.random() < 0.9

    def forward(self, x: torch.Tensor, beside: torch.Tensor | None = None) -> torch.Tensor:
        """The same shape."""
        if self.joined is not None and beside is not None:
            x = self.joined(torch.cat([x, beside], -1))
        made = self.body(self.norm(x) if self.before else x)
        made = x + made if self.residual else made
        return made if self.before else self.norm(made)


class Tile(nn.Module):
    """A layer on grids."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next grid."""
        return self.body(x)


class Words(nn.Module):
    """Tokens to a vocabulary, to classes, or to numbers."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        width, length, words = draw.choice((8, 12, 16)), draw.choice((4, 6, 8)), draw.choice((16, 20, 24))
        drop = draw.choice((0.0, 0.0, 0.2))
        self.length, self.goal = length, draw.choice(("words", "words", "tied", "tied", "classes", "distance"))
        self.table = nn.Embedding(words, width, padding_idx=draw.choice((None, None, 0)))
        self.places = nn.Embedding(length, width) if draw.random() < 0.6 else None
        self.first = nn.Dropout(drop)
        count = draw.randint(2, 5)
        self.skips = {at: draw.randrange(at) for at in range(1, count) if draw.random() < 0.3}
        self.joins = frozenset(at for at in self.skips if draw.random() < 0.5)
        self.layers = nn.ModuleList(Layer(draw, width, length, drop, at in self.joins) for at in range(count))
        self.norm = sequences.norm(draw, width)
        self.head = nn.Linear(width, words, bias=self.goal != "tied" and draw.random() < 0.5)
        if self.goal == "tied":
            self.head.weight = self.table.weight
        self.smoothing, self.ignored = draw.choice((0.0, 0.0, 0.1)), draw.choice((-100, -100, -1))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens (rows, length)."""
        x = self.table(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(self.length, device=tokens.device))
        x = self.first(x)
        states = [x]
        for at, one in enumerate(self.layers):
            if at in self.joins:
                x = one(x, states[self.skips[at]])
            else:
                x = one(x + states[self.skips[at]] if at in self.skips else x)
            states.append(x)
        made = self.head(self.norm(x))
        if self.goal == "distance":
            return functional.mse_loss(made.mean(1), labels)
        made = made.mean(1) if self.goal == "classes" else made.flatten(0, 1)
        return functional.cross_entropy(
            made, labels.flatten(), ignore_index=self.ignored, label_smoothing=self.smoothing
        )


class Images(nn.Module):
    """Images to classes, to classes of each pixel, or to numbers of each pixel."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        dims = draw.choice((1, 2, 2, 2, 3))
        sizes = tuple(draw.choice({1: (12, 16, 17), 2: (8, 9, 10), 3: (6, 8)}[dims]) for _ in range(dims))
        drop = draw.choice((0.0, 0.0, 0.2))
        self.grid = Grid(channels=draw.choice((2, 3)), sizes=sizes)
        grid = Grid(channels=draw.choice((4, 8)), sizes=sizes)
        self.stem = grids.CONVOLUTIONS[dims](self.grid.channels, grid.channels, 3, padding=1)
        made = []
        for _ in range(draw.randint(2, 5)):
            body, grid = grids.layer(draw, grid, drop)
            made.append(Tile(body))
        self.layers = nn.ModuleList(made)
        self.last, self.goal = grid, draw.choice(("classes", "classes", "pixels", "distance"))
        classes = draw.choice((4, 6))
        self.head: nn.Module
        if self.goal == "classes":
            self.head = nn.Linear(grid.channels, classes)
        else:
            self.head = grids.CONVOLUTIONS[dims](grid.channels, classes, 1)
        self.classes = classes

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = self.stem(image)
        for one in self.layers:
            x = one(x)
        if self.goal == "classes":
            x = x.mean(tuple(range(2, x.dim())))
        made = self.head(x)
        return functional.mse_loss(made, labels) if self.goal == "distance" else functional.cross_entropy(made, labels)


class Patches(nn.Module):
    """Images to classes by layers on the sequence of their patches."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        width, drop = draw.choice((8, 12)), draw.choice((0.0, 0.2))
        self.patches = nn.Conv2d(3, width, 2, 2)
        self.start = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 10, width) * 0.1)
        self.layers = nn.ModuleList(Layer(draw, width, 10, drop, False) for _ in range(draw.randint(2, 4)))
        self.norm = sequences.norm(draw, width)
        self.head = nn.Linear(width, 6)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1) + self.places
        for one in self.layers:
            x = one(x)
        return functional.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


def random_model(seed: str) -> Made:
    """The model of a seed, with its weights, in float64."""
    plain = _random_model(seed)
    model, unruly = made_unruly(seed, plain.model)
    return replace(plain, model=model, unruly=unruly)


def _random_model(seed: str) -> Made:
    draw = Random(seed)
    kind = draw.choices(("words", "images", "patches"), (5, 4, 1))[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(31))
        if kind == "words":
            words = Words(draw).double()
            return Made(kind=kind, model=words, batch=_words_batch(words))
        if kind == "images":
            images = Images(draw).double()
            return Made(kind=kind, model=images, batch=_images_batch(images))
        batch = {"image": ((ROWS, 3, 6, 6), torch.float64), "labels": ((ROWS,), torch.int64)}
        return Made(kind=kind, model=Patches(draw).double(), batch=batch)


def _words_batch(model: Words) -> dict[str, tuple[Shape, torch.dtype]]:
    labels: tuple[Shape, torch.dtype] = ((ROWS, model.length), torch.int64)
    if model.goal == "classes":
        labels = ((ROWS,), torch.int64)
    if model.goal == "distance":
        labels = ((ROWS, model.head.out_features), torch.float64)
    return {"tokens": ((ROWS, model.length), torch.int64), "labels": labels}


def _images_batch(model: Images) -> dict[str, tuple[Shape, torch.dtype]]:
    labels: tuple[Shape, torch.dtype] = ((ROWS,), torch.int64)
    if model.goal == "pixels":
        labels = ((ROWS, *model.last.sizes), torch.int64)
    if model.goal == "distance":
        labels = ((ROWS, model.classes, *model.last.sizes), torch.float64)
    return {"image": ((ROWS, model.grid.channels, *model.grid.sizes), torch.float64), "labels": labels}
