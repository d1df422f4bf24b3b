"""Models of published runs, captured once at two layers and deepened, which is the same as a capture at their depth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import transformers

from examples.deepen import deepened
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
        model = _gpt(shape) if shape.kind == "gpt" else _llama(shape)
    return capture(model, batch={"input_ids": (2, shape.sequence), "labels": (2, shape.sequence)})


def _gpt(shape: Shape) -> torch.nn.Module:
    """Tied embeddings, dropout, GELU, learned positions: Megatron's GPT of 2019 to 2022."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=shape.hidden, n_layer=shape.layers, n_head=shape.heads, n_positions=shape.sequence,
            vocab_size=shape.vocabulary, n_inner=shape.inner,
        )
    )  # fmt: skip


def _llama(shape: Shape) -> torch.nn.Module:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=shape.hidden, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, vocab_size=shape.vocabulary,
            max_position_embeddings=shape.sequence,
        )
    )  # fmt: skip
