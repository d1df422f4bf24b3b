"""The demo's model: a real GPT-2 from transformers at a size two processor cores train in seconds."""

from __future__ import annotations

from transformers import GPT2Config, GPT2LMHeadModel

REFERENCE = "placer.cli.commands.demo.model:build"
BATCH = {"input_ids": (8, 128), "labels": (8, 128)}


def build() -> GPT2LMHeadModel:
    """GPT-2 over bytes, 4 layers of width 256, without dropout so that its losses can be compared."""
    config = GPT2Config(
        vocab_size=256,
        n_positions=128,
        n_embd=256,
        n_layer=4,
        n_head=8,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)
