"""The models that are measured: small ones for processes of a CPU, whole ones for a GPU."""

from __future__ import annotations

import transformers
from torch import nn

from examples.models import bert_base, convnext_tiny, gpt2, resnet50, vit_base

Shapes = dict[str, tuple[int, ...]]


def gpt() -> nn.Module:
    """GPT-2 of half its depth and width, 128 positions and 8,192 words."""
    sizes = {"n_layer": 6, "n_embd": 384, "n_head": 6, "n_positions": 128, "vocab_size": 8192}
    rates = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    marks = {"bos_token_id": None, "eos_token_id": None, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, **marks))


def vit() -> nn.Module:
    """ViT of the small size (arXiv:2012.12877, table 1) and half its depth, on 96 x 96 pixels."""
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "num_hidden_layers": 6}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=96, num_labels=100))


def resnet() -> nn.Module:
    """ResNet-18 (arXiv:1512.03385, table 1)."""
    sizes = {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "num_labels": 100}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


def llama() -> nn.Module:
    """Llama of four layers of width 256, with half as many heads of keys and values."""
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": 4096}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, use_cache=False))


def _tokens(rows: int, length: int) -> dict[str, tuple[int, ...]]:
    return {"input_ids": (rows, length), "labels": (rows, length)}


def _images(rows: int, pixels: int) -> dict[str, tuple[int, ...]]:
    return {"pixel_values": (rows, 3, pixels, pixels), "labels": (rows,)}


ON_PROCESSES = {"gpt": _tokens(8, 128), "vit": _images(16, 96), "resnet": _images(8, 96), "llama": _tokens(8, 128)}


def llama_1b() -> nn.Module:
    """Llama of 16 layers of width 2,048, a billion parameters."""
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "vocab_size": 32000}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=16, use_cache=False))


# Of a GPU: text of usual lengths, pictures of 224 x 224 pixels.
ON_GPU: dict[str, Shapes] = {
    "gpt2": _tokens(8, 1024),
    "llama_1b": _tokens(4, 2048),
    "bert_base": _tokens(32, 512),
    "vit_base": _images(64, 224),
    "resnet50": _images(64, 224),
    "convnext_tiny": _images(64, 224),
}
__all__ = ["ON_GPU", "ON_PROCESSES", "bert_base", "convnext_tiny", "gpt2", "resnet50", "vit_base"]
