"""Models for `examples.measured.memory.table`: the families of `examples.models` at widths at which tensors, and not
odds and ends, make up the bytes. Each has 4 layers or so; on fake tensors their size costs nothing."""

from __future__ import annotations

import transformers
from torch import nn

from examples.models import UNet


def gpt2() -> nn.Module:
    """GPT-2, tied embeddings, no dropout."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=4, n_embd=256, n_head=8, vocab_size=2048, n_positions=256, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def gpt2_dropout() -> nn.Module:
    """The same with dropout of a tenth, of attention too."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=4, n_embd=256, n_head=8, vocab_size=2048, n_positions=256, bos_token_id=1, eos_token_id=2
        )
    )


def llama() -> nn.Module:
    """Llama with 8 query heads on 2 key-value heads."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_hidden_layers=4, num_key_value_heads=2, **_WIDE, **_TOKENS)
    )


def bert() -> nn.Module:
    """BERT with its masked language model head."""
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            num_hidden_layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **_WIDE, pad_token_id=0
        )
    )


def t5() -> nn.Module:
    """T5 of 4 + 4 layers."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=256, d_kv=32, d_ff=1024, num_layers=4, num_heads=8, vocab_size=2048, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def mixtral() -> nn.Module:
    """Mixtral, 4 experts, 2 of them per token."""
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            num_hidden_layers=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **_WIDE, **_TOKENS
        )
    )


def qwen3_moe() -> nn.Module:
    """Qwen3-MoE, 4 experts, 2 of them per token."""
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            num_hidden_layers=4, num_key_value_heads=2, head_dim=32, moe_intermediate_size=512, num_experts=4,
            num_experts_per_tok=2, **_WIDE, **_TOKENS,
        )
    )  # fmt: skip


def vit() -> nn.Module:
    """ViT on 64 x 64 images in patches of 8."""
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=64, patch_size=8, hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
            num_attention_heads=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=100,
        )
    )  # fmt: skip


def resnet() -> nn.Module:
    """ResNet of bottleneck blocks, three stages."""
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=64, hidden_sizes=[256, 512, 1024], depths=[2, 2, 2], layer_type="bottleneck", num_labels=100
        )
    )


def unet() -> nn.Module:
    """A U-Net of three levels for 64 x 64 images."""
    return UNet(channels=(32, 64, 128), classes=3, image_size=64)


_WIDE = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
