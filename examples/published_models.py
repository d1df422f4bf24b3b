"""Models of published runs, captured once at two layers and deepened, which is the same as a capture at their depth.

They are captured in bfloat16, so that what the models themselves cast to float32 (logits before the loss, norms of
Llama) is estimated in float32 under any precision of 16 bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import transformers

from examples.deepen import deepened
from examples.megatron_gpt import Gpt
from examples.published import Shape
from placer.graph import Graph
from placer.tracer import capture

SHALLOW = 2


@cache
def model_graph(shape: Shape) -> Graph:
    """The captured model of a shape, its loss in the model."""
    return deepened(_shallow(replace(shape, layers=SHALLOW)), shape.layers)


@cache
def _shallow(shape: Shape) -> Graph:
    with torch.device("meta"):
        model = (_gpt(shape) if shape.kind == "gpt" else _llama(shape)).to(torch.bfloat16)
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
