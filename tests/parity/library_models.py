"""What models of libraries do and others seldom: parts that cannot be exported run their modules again in backward,
parameters have no elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examples.parity.zoo.entry import entry

WIDTH = 8


class Part(nn.Module):
    """A layer that looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Twice as much where the sum is large, which it is not."""
        made = self.made(x)
        return made * 2 if float(made.detach().sum()) > 1e9 else made

    def made(self, x: Tensor) -> Tensor:
        """What the layer gives."""
        return self.layer(x)  # type: ignore[no-any-return]  # nn.Module is not typed


class Older(Part):
    """By torch's older checkpoint."""

    def made(self, x: Tensor) -> Tensor:
        """Kept as its input."""
        return checkpoint(self.layer, x, use_reentrant=True)  # type: ignore[no-any-return]


class Newer(Part):
    """By torch's newer checkpoint."""

    def made(self, x: Tensor) -> Tensor:
        """Kept as its input."""
        return checkpoint(self.layer, x, use_reentrant=False)  # type: ignore[no-any-return]


class Again(torch.autograd.Function):
    """Keeps nothing of a layer, and runs it again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        """What the layer gives."""
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            return layer(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None]:
        """The layer's own parameters get their gradients on the side."""
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.layer(x), g)
        return x.grad, None


class Reversible(Part):
    """By a Function that runs the layer again."""

    def made(self, x: Tensor) -> Tensor:
        """Kept as its input."""
        return Again.apply(x, self.layer)  # type: ignore[no-any-return,no-untyped-call]


class Told(torch.autograd.Function):
    """The same of a product, whose weight it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """tanh of the product."""
        ctx.save_for_backward(x, weight)
        return torch.tanh(x @ weight.T)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        """Of both."""
        x, weight = ctx.saved_tensors
        g = g * (1 - torch.tanh(x @ weight.T) ** 2)
        return g @ weight, g.T @ x


class Given(Part):
    """By a Function that is given the weight, and returns its gradient."""

    def made(self, x: Tensor) -> Tensor:
        """Kept as its input."""
        return Told.apply(x, self.layer[0].weight)  # type: ignore[no-any-return,no-untyped-call]


class Around(nn.Module):
    """Layers around a part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.first, self.part, self.head = nn.Linear(WIDTH, WIDTH), part, nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean square of what is missing."""
        return (self.head(self.part(self.first(x)).tanh()) - y).square().mean()  # type: ignore[no-any-return]


def older() -> nn.Module:
    """torch's older checkpoint."""
    return Around(Older())


def newer() -> nn.Module:
    """torch's newer checkpoint."""
    return Around(Newer())


def reversible() -> nn.Module:
    """A Function that runs modules again."""
    return Around(Reversible())


def given() -> nn.Module:
    """A Function that is given the weights."""
    return Around(Given())


class Registers(nn.Module):
    """Tokens before those of the input, of which the configuration asks for none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.registers = nn.Parameter(torch.zeros(1, 0, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean square of what is missing."""
        tokens = torch.cat([self.registers.expand(len(x), -1, -1), self.first(x)], dim=1)
        return (self.head(tokens.tanh().mean(1)) - y).square().mean()  # type: ignore[no-any-return]


class Deeper(Registers):
    """The same behind more layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Through more layers."""
        for block in self.blocks:
            x = block(x).tanh()
        return super().forward(x, y)


def lxmert() -> nn.Module:
    """Text and boxes; the answer is of the text, so that nothing reads the last layer of the boxes."""
    from transformers import LxmertConfig, LxmertForQuestionAnswering

    config = LxmertConfig(
        hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=32, l_layers=1, x_layers=1, r_layers=1,
        visual_feat_dim=WIDTH, num_qa_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        max_position_embeddings=8,
    )  # fmt: skip
    made: nn.Module = LxmertForQuestionAnswering(config)
    return made


ENTRIES = {
    **{one.__name__: entry(one, f"x: normal 8 {WIDTH}; y: normal 8 1") for one in (older, newer, reversible, given)},
    **{one.__name__: entry(one, f"x: normal 8 3 {WIDTH}; y: normal 8 1") for one in (Registers, Deeper)},
    "lxmert": entry(
        lxmert, f"input_ids: int32 8 6; visual_feats: normal 8 3 {WIDTH}; visual_pos: normal 8 3 4; labels: int3 8"
    ),
}
