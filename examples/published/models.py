"""Models of published runs, captured once at two layers and deepened, which is the same as a capture at their depth.

They are captured in bfloat16, so that what the models themselves cast to float32 (logits before the loss, norms of
Llama) is estimated in float32 under any precision of 16 bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import transformers

from examples.measured.deepen import deepened
from examples.published.megatron_gpt import Gpt
from examples.published.runs import Shape
from placer.graph import Graph
from placer.tracer import capture

SHALLOW = 2
# The first layers of DeepSeek-V3 have no experts (arXiv:2412.19437, section 4.2).
DENSE = 3


@cache
def model_graph(shape: Shape) -> Graph:
    """The captured model of a shape, its loss in the model."""
    dense = DENSE if shape.kind == "moe-mla" else 0
    return deepened(_shallow(replace(shape, layers=SHALLOW + 2 * dense)), shape.layers - dense)


@cache
def _shallow(shape: Shape) -> Graph:
    with torch.device("meta"):
        model = BUILDERS[shape.kind](shape).to(torch.bfloat16)
    return capture(model, batch={"input_ids": (2, shape.sequence), "labels": (2, shape.sequence)})


def _gpt(shape: Shape) -> torch.nn.Module:
    return Gpt(
        layers=shape.layers, hidden=shape.hidden, heads=shape.heads, inner=shape.inner, vocabulary=shape.vocabulary,
        sequence=shape.sequence,
    )  # fmt: skip


def _llama(shape: Shape) -> torch.nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=shape.hidden, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, vocab_size=shape.vocabulary,
            max_position_embeddings=shape.sequence,
        )
    )  # fmt: skip


def _qwen(shape: Shape) -> torch.nn.Module:
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            hidden_size=shape.hidden, intermediate_size=shape.inner, moe_intermediate_size=shape.expert_inner,
            num_experts=shape.experts, num_experts_per_tok=shape.chosen, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, head_dim=shape.head_size,
            vocab_size=shape.vocabulary, max_position_embeddings=shape.sequence,
        )
    )  # fmt: skip


def _deepseek(shape: Shape) -> torch.nn.Module:
    """Latent attention and experts as published: the defaults of transformers' configuration are DeepSeek-V3's."""
    return transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            num_hidden_layers=shape.layers, vocab_size=shape.vocabulary, use_cache=False, first_k_dense_replace=DENSE
        )
    )


BUILDERS = {"gpt": _gpt, "llama": _llama, "moe": _qwen, "moe-mla": _deepseek}
