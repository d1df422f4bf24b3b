"""Small models for faults that no other example model shows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from examples.parity.models import LENGTH, WIDTH, WORDS, Layer, Words

NUMBERS = (("values", (8, WIDTH)), ("labels", (8, WIDTH)))


class LabelledWords(nn.Module):
    """Words whose loss weights its classes, or smooths its labels."""

    weights: torch.Tensor | None

    def __init__(self, *, weighted: bool = False, smoothing: float = 0.0) -> None:
        super().__init__()
        self.body = Words()
        self.smoothing = smoothing
        weights = torch.linspace(0.5, 2.0, WORDS) if weighted else None
        self.register_buffer("weights", weights)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens and labels (rows, LENGTH)."""
        x = self.body.table(tokens)
        for layer in self.body.layers:
            x = layer(x)
        scores = self.body.head(x).flatten(0, 1)
        return functional.cross_entropy(
            scores, labels.flatten(), weight=self.weights, label_smoothing=self.smoothing
        )  # fmt: skip


class Distance(nn.Module):
    """Numbers to numbers, by the mean of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(0.0) for _ in range(4))

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean square of (rows, WIDTH)."""
        for layer in self.layers:
            values = layer(values)
        return functional.mse_loss(values, labels)


class Tall(nn.Module):
    """Convolutions that read their neighbours' rows, with batch norm, and a loss for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Conv2d(4, 5, 1)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of images (rows, 3, height, width)."""
        x = self.stem(image)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).mean((2, 3)), labels)


class Beside(nn.Module):
    """A layer that also reads what the model began with."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.start = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        return torch.tanh(self.own(x) + self.start(start))


class Forked(nn.Module):
    """Layers that all read the first value."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Beside() for _ in range(3))

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean square of (rows, WIDTH)."""
        x = start = self.stem(values)
        for layer in self.layers:
            x = layer(x, start)
        return functional.mse_loss(x, labels)


class Attending(nn.Module):
    """Causal attention with dropout, and dropout after it."""

    def __init__(self, drop: float = 0.2) -> None:
        super().__init__()
        self.drop = drop
        self.table = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.asked = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens and labels (rows, LENGTH)."""
        x = self.table(tokens) + self.places
        for asked, out in zip(self.asked, self.out, strict=True):
            query, key, value = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in asked(x).chunk(3, -1))
            drop = self.drop if self.training else 0.0
            heads = functional.scaled_dot_product_attention(query, key, value, dropout_p=drop, is_causal=True)
            x = x + functional.dropout(out(heads.transpose(1, 2).flatten(2)), self.drop, self.training)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Noising(nn.Module):
    """Noise on every row, one number for the whole batch, gates of every element; in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean of squares."""
        h = self.first(values)
        h = functional.gelu(h + 0.3 * torch.randn_like(h))
        h = self.second(h * (1.0 + torch.rand((), dtype=h.dtype)))
        h = h * torch.bernoulli(torch.sigmoid(h.detach()))
        return functional.mse_loss(self.head(h), labels)


def noising() -> nn.Module:
    """With random numbers."""
    return Noising()


def attending() -> nn.Module:
    """With attention."""
    return Attending()


def weighted_words() -> nn.Module:
    """With weights of classes."""
    return LabelledWords(weighted=True)


def smoothed_words() -> nn.Module:
    """With smoothed labels."""
    return LabelledWords(smoothing=0.2)


def distance() -> nn.Module:
    """With a mean of squares."""
    return Distance()


def forked() -> nn.Module:
    """With a value that all layers read."""
    return Forked()


def tall() -> nn.Module:
    """With windows."""
    return Tall()
