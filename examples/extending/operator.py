"""An operator of one's own: what it computes (a FLOP rule), and how it may be cut (a split rule).

    placer plan examples.extending.operator:build --cluster localx2 --batch x=8x256x512 --pin tensor=2 -o plan.json
    placer verify plan.json

Rules are registered where the model is imported, so that each rank knows them too.
"""

from __future__ import annotations

import torch
from torch import nn

from placer.rules import Call, Work, gradients, named, register, register_split


@torch.library.custom_op("examples::shifted", mutates_args=())
def shifted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x` (batch, sequence, hidden) moved on by one token, times `weight` (hidden, out)."""
    return torch.roll(x, 1, 1) @ weight


@shifted.register_fake
def _shape(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[1])


def _backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
    moved = torch.roll(x, 1, 1)
    return torch.roll(gradient @ weight.T, -1, 1), moved.flatten(0, 1).T @ gradient.flatten(0, 1)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


shifted.register_autograd(_backward, setup_context=_keep)


def work(call: Call) -> Work:
    """One matrix product of all tokens with the weight; its gradients are two more."""
    x, weight = call.tensor(0), call.tensor(1)
    tokens = x.elements // x.shape[-1]
    return gradients(x, weight, batch=1, m=tokens, n=weight.shape[1], k=weight.shape[0])


register("examples::shifted", work, kind="matmul")
# `out` may be cut, and `hidden`, which gives partial sums; tokens move, so that the sequence stays whole.
register_split("examples::shifted", named("batch sequence! hidden, hidden out -> batch sequence! out"))


class Model(nn.Module):
    """Two layers of the operator."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(width, 4 * width) / width)
        self.down = nn.Parameter(torch.randn(4 * width, width) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of what comes out, of `x` (batch, sequence, width)."""
        return (x + shifted(torch.relu(shifted(x, self.up)), self.down)).square().mean()


def build() -> Model:
    """The model, freshly initialised."""
    return Model()
