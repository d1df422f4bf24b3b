"""The model of the comparisons: a decoder with plain layers, as a person would write it for one device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the model and its batch are. rows: of the global batch, in `microbatches` parts for pipelines."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    words: int = 1024
    length: int = 64
    rows: int = 8
    microbatches: int = 4


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    """What a layer on one device does around its products: nothing."""
    return x


class Layer(nn.Module):
    """Attention and a feed-forward layer, each with a norm before and a residual around it.

    before, behind: what is done to their inputs and outputs where the products between are cut.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.hidden
        self.heads = size.heads
        self.before, self.behind = as_it_is, as_it_is
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden, bias=False), nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape: (rows, length, hidden)."""
        inner = self.before(self.norm_1(x))
        q, k, v = (one(inner).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.behind(self.o(mixed.transpose(1, 2).flatten(2)))
        made: torch.Tensor = x + self.behind(self.down(functional.gelu(self.up(self.before(self.norm_2(x))))))
        return made


class Decoder(nn.Module):
    """Tokens to the mean loss of labels."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(size.words, size.hidden), nn.Embedding(size.length, size.hidden)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.words, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of (rows, length) tokens."""
        return loss(self.scored(self.embedded(tokens)), labels)

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the first layer reads."""
        made: torch.Tensor = self.table(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return made

    def scored(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of all words, from what the first layer reads."""
        for layer in self.layers:
            x = layer(x)
        made: torch.Tensor = self.head(self.norm(x))
        return made


def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def decoder(size: Size) -> Decoder:
    """The model with weights that every rank makes alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Decoder(size)


def batch(size: Size, step: int) -> dict[str, torch.Tensor]:
    """The global batch of a step."""
    generator = torch.Generator().manual_seed(step)
    shape = (size.rows, size.length)
    return {name: torch.randint(0, size.words, shape, generator=generator) for name in ("tokens", "labels")}
