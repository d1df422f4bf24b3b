"""MPT as llm-foundry trains it, op by op, so that a capture of it counts what its host issues.

Written after mosaicml/llm-foundry, llmfoundry/models/mpt/modeling_mpt.py and layers/{attention,blocks,ffn}.py: norms
before attention and feed-forward, query, key and value of one product, GELU of one kernel, positions that are learned,
the head on the token embeddings. Nothing is dropped (`emb_pdrop`, `resid_pdrop`, `attn_pdrop` are 0 in its
configurations, and its flash attention refuses to). The loss is of logits as they are, in 16 bits where those are:
`loss_fn: fused_crossentropy`, flash-attn's kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Mpt(nn.Module):
    """Token and position embeddings, layers, norm, the head on the token embeddings, the loss."""

    def __init__(self, *, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, sequence: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.places = nn.Embedding(sequence, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of rows of tokens with labels of the same shape."""
        values = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            values = layer(values)
        logits = functional.linear(self.norm(values), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Layer(nn.Module):
    """Norm, attention, norm, two products."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(hidden)
        self.mixed = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.between = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result, of its input's shape: batch, sequence, hidden."""
        values = values + self._attended(self.before(values))
        made: Tensor = values + self.down(functional.gelu(self.up(self.between(values))))
        return made

    def _attended(self, values: Tensor) -> Tensor:
        batch, sequence, width = values.shape
        parts = self.mixed(values).chunk(3, dim=-1)
        query, key, value = (p.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        context = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        made: Tensor = self.dense(context.transpose(1, 2).reshape(batch, sequence, width))
        return made
