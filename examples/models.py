"""Models to plan and run: factories of full size, and a `tiny_` twin of each for execution on a small machine.

Use them by name: `placer plan examples.models:gpt2 --cluster h100x8`. Sizes are those of the published configurations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import nn


def gpt2() -> nn.Module:
    """GPT-2, 124 M parameters (Radford et al. 2019)."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def tiny_gpt2() -> nn.Module:
    """GPT-2 of 4 small layers, tied embeddings, no dropout."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=4,
            n_embd=32,
            n_head=4,
            vocab_size=96,
            n_positions=32,
            **_TOKENS,
            **_no_dropout("resid_", "embd_", "attn_"),
        )
    )


def llama3_8b() -> nn.Module:
    """Llama 3 8B (Grattafiori et al. 2024, table 3)."""
    return _llama(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32)


def llama3_70b() -> nn.Module:
    """Llama 3 70B (Grattafiori et al. 2024, table 3)."""
    return _llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)


def tiny_llama() -> nn.Module:
    """Llama of 4 small layers with 4 query heads on 2 key-value heads."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_hidden_layers=4, num_key_value_heads=2, **_SMALL, **_TOKENS)
    )


def mixtral_8x7b() -> nn.Module:
    """Mixtral 8x7B (Jiang et al. 2024, table 1)."""
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(max_position_embeddings=32768))


def tiny_mixtral() -> nn.Module:
    """Mixtral of 4 small layers, 4 experts, 2 of them per token."""
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            num_hidden_layers=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **_SMALL, **_TOKENS
        )
    )


def qwen3_30b_a3b() -> nn.Module:
    """Qwen3-30B-A3B (Yang et al. 2025, table 2): 128 experts, 8 per token."""
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            norm_topk_prob=True,
            vocab_size=151936,
            max_position_embeddings=40960,
        )
    )


def tiny_qwen3_moe() -> nn.Module:
    """Qwen3-MoE of 4 small layers, 4 experts, 2 of them per token."""
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            num_hidden_layers=4,
            num_key_value_heads=2,
            head_dim=8,
            moe_intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
            **_SMALL,
            **_TOKENS,
        )
    )


def gpt_oss_20b() -> nn.Module:
    """gpt-oss-20b (OpenAI 2025, arXiv:2508.10925, table 1 and its config.json): 32 experts with biases, 4 per token."""
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            hidden_size=2880,
            intermediate_size=2880,
            num_hidden_layers=24,
            num_attention_heads=64,
            num_key_value_heads=8,
            head_dim=64,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
            vocab_size=201088,
        )
    )


def tiny_gpt_oss() -> nn.Module:
    """gpt-oss of 4 small layers, 4 experts, 2 of them per token, windows of 4 tokens in every second one."""
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            num_hidden_layers=4,
            num_key_value_heads=2,
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=4,
            **_SMALL,
            **_TOKENS,
        )
    )


def bert_base() -> nn.Module:
    """BERT base (Devlin et al. 2019) with its masked language model head."""
    return transformers.BertForMaskedLM(transformers.BertConfig())


def tiny_bert() -> nn.Module:
    """BERT of 4 small layers, no dropout."""
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            num_hidden_layers=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **_SMALL, pad_token_id=0
        )
    )


def t5_small() -> nn.Module:
    """T5 small (Raffel et al. 2020)."""
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**_START))


def t5_base() -> nn.Module:
    """T5 base (Raffel et al. 2020)."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, **_START)
    )


def tiny_t5() -> nn.Module:
    """T5 of 4 + 4 small layers, no dropout."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=32, d_kv=8, d_ff=64, num_layers=4, num_heads=4, vocab_size=96, dropout_rate=0.0, **_START
        )
    )


def vit_base() -> nn.Module:
    """ViT base, patches of 16 (Dosovitskiy et al. 2021), 1000 classes."""
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))


def tiny_vit() -> nn.Module:
    """ViT of 4 small layers on 16 x 16 images."""
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=16,
            patch_size=4,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=10,
        )
    )


def resnet50() -> nn.Module:
    """ResNet-50 (He et al. 2015), 1000 classes."""
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def tiny_resnet() -> nn.Module:
    """ResNet of bottleneck blocks, two stages."""
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2], layer_type="bottleneck", num_labels=10
        )
    )


def convnext_tiny() -> nn.Module:
    """ConvNeXt tiny (Liu et al. 2022), 1000 classes."""
    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(depths=[3, 3, 9, 3], hidden_sizes=[96, 192, 384, 768], num_labels=1000)
    )


def tiny_convnext() -> nn.Module:
    """ConvNeXt of two small stages on 32 x 32 images."""
    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(num_stages=2, depths=[2, 4], hidden_sizes=[8, 16], image_size=32, num_labels=10)
    )


def whisper_small() -> nn.Module:
    """Whisper small (Radford et al. 2022), 12 + 12 layers."""
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=51865,
            d_model=768,
            encoder_layers=12,
            decoder_layers=12,
            encoder_attention_heads=12,
            decoder_attention_heads=12,
            encoder_ffn_dim=3072,
            decoder_ffn_dim=3072,
        )
    )


def tiny_whisper() -> nn.Module:
    """Whisper of 4 + 4 small layers, 32 frames and 16 tokens."""
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=96,
            num_mel_bins=8,
            d_model=32,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=16,
            max_target_positions=16,
            decoder_start_token_id=1,
            **_TOKENS,
        )
    )


class DoubleConvolution(nn.Sequential):
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """A U-Net (Ronneberger et al. 2015) written by hand: every level of the way down is concatenated on the way up.

    forward(image, labels=None): logits per pixel; the mean cross-entropy where labels (rows, height, width) are given.
    """

    def __init__(self, channels: tuple[int, ...] = (64, 128, 256, 512), classes: int = 2, image_size: int = 256):
        super().__init__()
        self.image_size = image_size
        self.down = nn.ModuleList(
            DoubleConvolution(inputs, outputs) for inputs, outputs in zip((3, *channels[:-1]), channels, strict=True)
        )
        self.bottom = DoubleConvolution(channels[-1], 2 * channels[-1])
        widths = channels[::-1]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths)
        self.up = nn.ModuleList(DoubleConvolution(2 * width, width) for width in widths)
        self.head = nn.Conv2d(channels[0], classes, 1)

    def forward(self, image: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (rows, classes, height, width), or the loss."""
        skips = []
        x = image
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, level, skip in zip(self.grow, self.up, reversed(skips), strict=True):
            x = level(torch.cat([skip, grow(x)], dim=1))
        logits: torch.Tensor = self.head(x)
        return logits if labels is None else nn.functional.cross_entropy(logits, labels)


def unet() -> nn.Module:
    """A U-Net of four levels, 31 M parameters."""
    return UNet()


def tiny_unet() -> nn.Module:
    """A U-Net of three levels for 16 x 16 images."""
    return UNet(channels=(4, 8, 16), classes=3, image_size=16)


# Name -> (full size, small twin, rows x sizes of the small one's batch).
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "gpt2": (gpt2, tiny_gpt2),
    "llama3_8b": (llama3_8b, tiny_llama),
    "llama3_70b": (llama3_70b, tiny_llama),
    "qwen3_30b_a3b": (qwen3_30b_a3b, tiny_qwen3_moe),
    "mixtral_8x7b": (mixtral_8x7b, tiny_mixtral),
    "gpt_oss_20b": (gpt_oss_20b, tiny_gpt_oss),
    "bert_base": (bert_base, tiny_bert),
    "t5_base": (t5_base, tiny_t5),
    "vit_base": (vit_base, tiny_vit),
    "resnet50": (resnet50, tiny_resnet),
    "convnext_tiny": (convnext_tiny, tiny_convnext),
    "whisper_small": (whisper_small, tiny_whisper),
    "unet": (unet, tiny_unet),
}


def example_batch(model: nn.Module, rows: int, length: int = 12) -> dict[str, tuple[int, ...]]:
    """Shapes of a small batch for any model of this file: `length` tokens, or the model's own image or audio size."""
    if isinstance(model, UNet):
        size = model.image_size
        return {"image": (rows, 3, size, size), "labels": (rows, size, size)}
    config = getattr(model, "config")  # noqa: B009
    main = str(getattr(model, "main_input_name", "input_ids"))
    if main == "pixel_values":
        size = int(getattr(config, "image_size", 32))
        return {"pixel_values": (rows, 3, size, size)}
    if main == "input_features":
        return {
            "input_features": (rows, int(config.num_mel_bins), 2 * int(config.max_source_positions)),
            "labels": (rows, min(length, int(config.max_target_positions))),
        }
    return {"input_ids": (rows, length)}


def _llama(**sizes: int) -> nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, **sizes
        )
    )


def _no_dropout(*prefixes: str) -> dict[str, float]:
    return {f"{prefix}pdrop": 0.0 for prefix in prefixes}


_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 32,
}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_START = {"decoder_start_token_id": 0, "pad_token_id": 0}
