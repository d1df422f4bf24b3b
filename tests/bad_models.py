"""Models that cannot be captured, or that no machine holds."""

from __future__ import annotations

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


class Branches(nn.Module):
    """Takes a path that depends on its values, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        if y.sum() > 0:  # the line the error must name
            return y.mean()
        return y.sum()


def branches() -> Branches:
    return Branches()


def tiny() -> GPT2LMHeadModel:
    """A GPT-2 of two layers over bytes."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2))


def wider() -> GPT2LMHeadModel:
    """Another one."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2))


def plain() -> nn.Module:
    """Implies no batch."""
    return nn.Linear(3, 3)


def not_a_model() -> str:
    return "weights"
