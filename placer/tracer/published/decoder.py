"""Llama's decoder (arXiv:2302.13971) as training frameworks run it, op by op, so that a capture counts what they issue.

Norms are one kernel (`torch.nn.RMSNorm`; Transformer Engine's and Apex's are as well), or, where they are written out,
op by op in float32, as torchtitan's were (torchtitan/models/norms.py, `RMSNorm`), rotary embeddings turn pairs of
halves, keys and values have fewer heads than queries (arXiv:2305.13245), the feed-forward is gated, logits become
float32 before the loss. With adapters (LoRA, arXiv:2106.09685) the products that make queries, keys and values have
them beside, as the runs that tables tell of had (NeMo, nemo/collections/llm/recipes/llama2_7b.py: peft.target_modules =
["linear_qkv"]), and nothing else is trained. Where a mixture is wanted, the model is transformers' own (`models.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

BASE = 500000.0
EPSILON = 1e-5


class Decoder(nn.Module):
    """Token embedding, layers, norm, head, the loss in float32."""

    def __init__(
        self, *, layers: int, hidden: int, heads: int, key_heads: int, head_size: int, inner: int, vocabulary: int,
        sequence: int, adapters: int = 0, written_out: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        norm = WrittenNorm if written_out else FusedNorm
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(
            Layer((heads, key_heads, head_size), hidden, inner, norm, adapters) for _ in range(layers)
        )
        self.norm = norm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        speeds = BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        angles = torch.outer(torch.arange(sequence, dtype=torch.float32), speeds).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(not adapters or ".adapter" in name)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of rows of tokens with labels of the same shape."""
        values = self.tokens(input_ids)
        for layer in self.layers:
            values = layer(values, self.cosine, self.sine)
        logits = self.head(self.norm(values))
        return functional.cross_entropy(logits.float().transpose(1, 2), labels)  # tokens apart, so that they may be cut


class Layer(nn.Module):
    """Norm, attention, norm, gated feed-forward."""

    def __init__(
        self, sizes: tuple[int, int, int], hidden: int, inner: int, norm: type[nn.Module], adapters: int
    ) -> None:  # fmt: skip
        super().__init__()
        heads, key_heads, head_size = self.sizes = sizes
        self.before = norm(hidden)
        self.query = product(hidden, heads * head_size, adapters)
        self.key = product(hidden, key_heads * head_size, adapters)
        self.value = product(hidden, key_heads * head_size, adapters)
        self.dense = product(heads * head_size, hidden)
        self.between = norm(hidden)
        self.gate = product(hidden, inner)
        self.up = product(hidden, inner)
        self.down = product(inner, hidden)

    def forward(self, values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """The layer's result, of its input's shape: batch, sequence, hidden."""
        values = values + self._attended(self.before(values), cosine, sine)
        normed = self.between(values)
        made: Tensor = values + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return made

    def _attended(self, values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        batch, sequence, _ = values.shape
        heads, key_heads, size = self.sizes
        query = self.query(values).view(batch, sequence, heads, size).transpose(1, 2)
        key = self.key(values).view(batch, sequence, key_heads, size).transpose(1, 2)
        value = self.value(values).view(batch, sequence, key_heads, size).transpose(1, 2)
        query, key = turned(query, cosine, sine), turned(key, cosine, sine)
        context = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=key_heads != heads
        )
        made: Tensor = self.dense(context.transpose(1, 2).reshape(batch, sequence, heads * size))
        return made


class FusedNorm(nn.RMSNorm):
    """Root-mean-square norm (arXiv:1910.07467) in one kernel."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, eps=EPSILON)


class WrittenNorm(nn.Module):
    """The same op by op, in float32."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, values: Tensor) -> Tensor:
        """Values over the root of the mean of their squares, times the weight."""
        wide = values.float()
        made: Tensor = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(values.dtype) * self.weight
        return made


class Adapted(nn.Module):
    """A product whose weight is frozen, and beside it one of low rank that is trained."""

    def __init__(self, entering: int, leaving: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(entering, leaving, bias=False)
        self.adapter_in = nn.Linear(entering, rank, bias=False)
        self.adapter_out = nn.Linear(rank, leaving, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """Both results together."""
        made: Tensor = self.frozen(values) + self.adapter_out(self.adapter_in(values))
        return made


def product(entering: int, leaving: int, adapters: int = 0) -> nn.Module:
    """A product without bias, with adapters of that rank where it is not 0."""
    return Adapted(entering, leaving, adapters) if adapters else nn.Linear(entering, leaving, bias=False)


def turned(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of (batch, heads, sequence, size), in the values' type."""
    first, second = values.chunk(2, dim=-1)
    return values * cosine.to(values.dtype) + torch.cat((-second, first), dim=-1) * sine.to(values.dtype)
