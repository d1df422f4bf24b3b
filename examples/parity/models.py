"""Small models that exist only to be verified: each needs mechanisms of the runtime, and is captured quickly."""

from __future__ import annotations

from itertools import pairwise

import torch
import transformers
from torch import nn
from torch.nn import functional

WORDS, LENGTH, WIDTH = 24, 6, 12
TEXT = (("tokens", (8, LENGTH)), ("labels", (8, LENGTH)))
IMAGES = (("image", (8, 3, 8, 8)), ("labels", (8,)))


class Layer(nn.Module):
    """A feed-forward layer with a residual."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.back = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        return x + self.dropout(self.back(functional.gelu(self.wide(self.norm(x)))))


class Words(nn.Module):
    """Embedding tied to the head, four layers, a skip from the first to the last, integer inputs read at the end.

    bridged: another skip, around the third layer.
    """

    def __init__(self, dropout: float = 0.0, *, bridged: bool = False) -> None:
        super().__init__()
        self.bridged = bridged
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens and labels (rows, LENGTH)."""
        first = x = self.table(tokens)
        second = self.layers[1](self.layers[0](x))
        third = self.layers[2](second)
        x = self.layers[3](third + second if self.bridged else third)
        x = x + first.transpose(1, 2).transpose(1, 2) * (tokens > 3).unsqueeze(-1)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Tempered(nn.Module):
    """Layers that are scaled by learnt numbers without dimensions: one of each layer, and one of all."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gains = nn.ParameterList(nn.Parameter(torch.tensor(0.5 + 0.1 * place)) for place in range(4))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens and labels (rows, LENGTH)."""
        x = self.table(tokens)
        for layer, gain in zip(self.layers, self.gains, strict=True):
            x = x + torch.tanh(layer(x) * self.temperature) * gain
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Adapted(nn.Module):
    """A linear layer that stays as it is, and what is learnt beside it: two products of low rank."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, 2, bias=False)
        self.up = nn.Linear(2, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        return self.frozen(x) + self.up(self.down(x))


class Images(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 4, 4, 4, 4)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            for a, b in pairwise(widths)
        )
        self.head = nn.Linear(4, 5)

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of images (rows, 3, height, width)."""
        x = image
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class Directions(nn.Module):
    """Layers of what is divided by its length, which has no derivative at zero, added in place to a view."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of tokens and labels (rows, LENGTH)."""
        x = self.table(tokens)
        for layer in self.layers:
            made = layer(x / x.square().sum(-1, keepdim=True).sqrt())
            made += x
            x = made
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def words() -> Words:
    """Without dropout."""
    return Words()


def dropping_words() -> Words:
    """With dropout."""
    return Words(0.3)


def bridged_words() -> Words:
    """With a skip around a layer."""
    return Words(bridged=True)


def images() -> Images:
    """With batch norm."""
    return Images()


def directions() -> Directions:
    """Without a derivative at zero, writing in place."""
    return Directions()


def tempered() -> Tempered:
    """With parameters without dimensions."""
    return Tempered()


def dropping_gpt2() -> nn.Module:
    """GPT-2 of 3 small layers with dropout in embeddings, residuals and attention."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=3, n_embd=32, n_head=4, vocab_size=96, n_positions=32,
            bos_token_id=1, eos_token_id=2, pad_token_id=0, resid_pdrop=0.1, embd_pdrop=0.2, attn_pdrop=0.1,
        )
    )  # fmt: skip


def gemma2() -> nn.Module:
    """Gemma-2 of 4 small layers, whose weights of norms begin at zero and get gradients close to it."""
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(
            num_hidden_layers=4, hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, vocab_size=64, max_position_embeddings=32, sliding_window=8, attn_implementation="eager",
        )
    )  # fmt: skip


def adapted_words() -> nn.Module:
    """`words` of which only adapters of the wide products learn, but for the last layer, of which nothing does."""
    model = Words()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in list(model.layers)[:-1]:
        assert isinstance(layer, Layer)
        layer.wide = Adapted(layer.wide)  # type: ignore[assignment]  # it is called as one
    return model
