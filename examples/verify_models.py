"""Small models that exist only to be verified: with dropout, untied, and with other shapes than those of `models`."""

from __future__ import annotations

import transformers
from torch import nn


def dropping_gpt2() -> nn.Module:
    """GPT-2 of 3 small layers with dropout in embeddings, residuals and attention."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=3, n_embd=32, n_head=4, vocab_size=96, n_positions=32,
            bos_token_id=1, eos_token_id=2, pad_token_id=0, resid_pdrop=0.1, embd_pdrop=0.2, attn_pdrop=0.1,
        )
    )  # fmt: skip
