"""Experts of two products with an activation between them, as Megatron's GPT has them: no gate.

They are transformers' grouped products (its integrations/moe.py, `has_gate=False`), set in place of a mixture's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import use_experts_implementation


class PlainExperts(nn.Module):
    """The weights of all experts of a layer."""

    def __init__(self, config: Any) -> None:  # transformers' configurations have no common type with these sizes
        super().__init__()
        self.num_experts = config.num_experts
        inner, hidden = config.moe_intermediate_size, config.hidden_size
        self.up_proj = nn.Parameter(torch.empty(self.num_experts, inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, hidden, inner))
        self.act_fn = nn.GELU(approximate="tanh")

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Never reached: the grouped products stand in for it."""
        raise NotImplementedError


def with_plain_experts(model: nn.Module) -> nn.Module:
    """The model with experts without a gate in each of its layers."""
    grouped: Any = use_experts_implementation(has_gate=False)(PlainExperts)
    for module in [*model.modules()]:
        experts: Any = getattr(module, "experts", None)
        if experts is not None:
            module.experts = grouped(experts.config)
    return model
