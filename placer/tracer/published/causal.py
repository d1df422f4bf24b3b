"""Attention of transformers' models as the kernels of training frameworks run it.

Captured as they come, these models make a mask of all positions, which no kernel can tell from any other, and repeat
keys and values for every query. Those kernels know by a flag that later positions are hidden, skip these, and read each
key and value once (FlashAttention-2, arXiv:2307.08691, section 3.1; Transformer Engine's `DotProductAttention`:
`attn_mask_type="causal"`, `num_gqa_groups`).
"""

from __future__ import annotations

import transformers
from torch import Tensor, nn
from torch.nn import functional

CAUSAL = "placer_causal"


def causal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, *,
    scaling: float | None = None, **others: object,
) -> tuple[Tensor, None]:  # fmt: skip
    """What transformers calls for (batch, heads, sequence, size); results of (batch, sequence, heads, size)."""
    context = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=key.shape[1] != query.shape[1]
    )
    return context.transpose(1, 2).contiguous(), None


# For an attention that has no mask registered transformers makes none (its masking_utils.py).
transformers.AttentionInterface.register(CAUSAL, causal_attention)
