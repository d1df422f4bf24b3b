"""A small GPT-2 whose tokens are bytes: the model of the README's examples.

placer plan examples.gpt:build --cluster localx2 --batch 8x128 -o plan.json
"""

from __future__ import annotations

from transformers import GPT2Config, GPT2LMHeadModel


def build() -> GPT2LMHeadModel:
    """The model, freshly initialised. placer calls this on the meta device to plan, on each rank to run."""
    config = GPT2Config(
        vocab_size=256,
        n_positions=128,
        n_embd=192,
        n_layer=4,
        n_head=6,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)
