"""Megatron's GPT of 2019 to 2022 as it is run, op by op, so that a capture of it counts what its host issues.

Written after Megatron-LM v2.4, one torch call for one of its own: `megatron/model/transformer.py` (ParallelAttention,
ParallelMLP, ParallelTransformerLayer), `language_model.py` (tied embeddings, parallel_lm_logits), `gpt_model.py`
(`output.float()` before the loss) and `megatron/mpu/cross_entropy.py`. What differs: values lie batch first, the fused
scale-mask-softmax between its two products is within torch's attention, and the loss is torch's, which is what
`mpu.vocab_parallel_cross_entropy` computes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# Of hidden states and of attention (arguments.py, --hidden-dropout, --attention-dropout).
DROPOUT = 0.1


class Gpt(nn.Module):
    """Token and position embeddings, layers, the head on the token embeddings, the loss in float32."""

    def __init__(self, *, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, sequence: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.places = nn.Embedding(sequence, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of rows of tokens with labels of the same shape."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        values = functional.dropout(self.tokens(input_ids) + self.places(places), DROPOUT, self.training)
        for layer in self.layers:
            values = layer(values)
        logits = functional.linear(self.norm(values), self.tokens.weight)
        return functional.cross_entropy(logits.float().transpose(1, 2), labels)  # tokens apart, so that they may be cut


class Layer(nn.Module):
    """Norm, attention, norm, two products; biases of the second products are added with the dropout."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.attention_bias = nn.Parameter(torch.zeros(hidden))
        self.between = nn.LayerNorm(hidden)
        self.wide = nn.Linear(hidden, inner)
        self.narrow = nn.Linear(inner, hidden, bias=False)
        self.narrow_bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, values: Tensor) -> Tensor:
        """The layer's result, of its input's shape: batch, sequence, hidden."""
        values = self._added(values, self.attention(self.before(values)), self.attention_bias)
        wide = functional.gelu(self.wide(self.between(values)), approximate="tanh")
        return self._added(values, self.narrow(wide), self.narrow_bias)

    def _added(self, values: Tensor, made: Tensor, bias: Tensor) -> Tensor:
        """bias_dropout_add of transformer.py."""
        return values + functional.dropout(made + bias.expand_as(values), DROPOUT, self.training)


class Attention(nn.Module):
    """Causal attention; query, key and value of a head lie side by side, as Megatron keeps them.

    Its two products take batch and heads as one dim: values are viewed so before each, and apart again after it.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """The second product's result, without its bias."""
        batch, sequence, width = values.shape
        size = width // self.heads
        mixed = self.mixed(values).view(batch, sequence, self.heads, 3 * size)
        parts = [part.transpose(1, 2) for part in mixed.chunk(3, dim=-1)]
        query, key, value = (part.view(batch, self.heads, sequence, size) for part in parts)
        dropout = DROPOUT if self.training else 0.0
        context = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        made: Tensor = self.dense(context.transpose(1, 2).contiguous().view(batch, sequence, width))
        return made
