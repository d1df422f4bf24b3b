"""Models of published runs, captured once at a small depth and deepened, which is the same as a capture at their depth.

They are captured in bfloat16 where they run in 16 bits, so that what the models themselves cast to float32 (logits
before the loss, norms of Llama) is estimated in float32 under any precision of 16 bits; else in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import ceil

import torch
import transformers

from placer.errors import UsageError
from placer.graph import Graph
from placer.io.model_shape import Shape
from placer.tracer import capture
from placer.tracer.deepen import deepened
from placer.tracer.published.causal import CAUSAL
from placer.tracer.published.decoder import Decoder
from placer.tracer.published.megatron_gpt import Gpt
from placer.tracer.published.mpt import Mpt
from placer.tracer.published.plain_experts import with_plain_experts
from placer.tracer.published.residual import residual_network

SHALLOW = 2
# The share of its tokens that BERT masks (arXiv:1810.04805, section 3.1).
MASKED = 0.15
# The first layers of DeepSeek-V3 have no experts (arXiv:2412.19437, section 4.2).
DENSE = 3


@cache
def model_graph(shape: Shape, *, half: bool = True) -> Graph:
    """The captured model of a shape, its loss in the model; in bfloat16, or, where not `half`, in float32."""
    if not shape.tokens:
        return _images(shape, half=half)
    dense = DENSE if shape.kind == "mla" else 0
    first = 1 if shape.adapters else 0  # no gradient flows to what enters the first layer
    shallow = replace(shape, layers=SHALLOW + 2 * dense + first)
    return deepened(_shallow(shallow, half=half), shape.layers - dense - first)


@cache
def _shallow(shape: Shape, *, half: bool) -> Graph:
    try:
        with torch.device("meta"):
            model = BUILDERS[shape.kind](shape).to(torch.bfloat16 if half else torch.float32)
    except Exception as wrong:  # what the constructors of other libraries raise is theirs to choose
        raise UsageError(f"no model has the sizes {shape}: {wrong}; mend the row") from None
    return capture(model, batch={"input_ids": (2, shape.sequence), "labels": (2, shape.sequence)})


def _images(shape: Shape, *, half: bool) -> Graph:
    dtype = torch.bfloat16 if half else torch.float32
    with torch.device("meta"):
        model = residual_network(shape.kind, shape.vocabulary).to(dtype)
        images = torch.empty(2, 3, shape.sequence, shape.sequence, dtype=dtype)
        labels = torch.zeros(2, dtype=torch.int64)
    return capture(model, batch={"images": images, "labels": labels})


def _gpt(shape: Shape) -> torch.nn.Module:
    return Gpt(
        layers=shape.layers, hidden=shape.hidden, heads=shape.heads, inner=shape.inner, vocabulary=shape.vocabulary,
        sequence=shape.sequence,
    )  # fmt: skip


def _mpt(shape: Shape) -> torch.nn.Module:
    return Mpt(
        layers=shape.layers, hidden=shape.hidden, heads=shape.heads, inner=shape.inner, vocabulary=shape.vocabulary,
        sequence=shape.sequence,
    )  # fmt: skip


def _squared(shape: Shape) -> torch.nn.Module:
    """Nemotron: squared ReLU, no gate."""
    made: torch.nn.Module = transformers.NemotronForCausalLM(
        transformers.NemotronConfig(
            hidden_size=shape.hidden, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, vocab_size=shape.vocabulary,
            max_position_embeddings=shape.sequence, head_dim=shape.head_size or shape.hidden // shape.heads,
            use_cache=False, attn_implementation=CAUSAL,
        )
    )  # fmt: skip
    return made


def _llama(shape: Shape) -> torch.nn.Module:
    return Decoder(
        layers=shape.layers, hidden=shape.hidden, heads=shape.heads, key_heads=shape.key_heads,
        head_size=shape.head_size or shape.hidden // shape.heads, inner=shape.inner, vocabulary=shape.vocabulary,
        sequence=shape.sequence, adapters=shape.adapters, written_out=shape.written_out,
    )  # fmt: skip


def _mixture(shape: Shape) -> torch.nn.Module:
    made: torch.nn.Module = transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            hidden_size=shape.hidden, intermediate_size=shape.inner, moe_intermediate_size=shape.expert_inner,
            num_experts=shape.experts, num_experts_per_tok=shape.chosen, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
            head_dim=shape.head_size or shape.hidden // shape.heads, vocab_size=shape.vocabulary,
            max_position_embeddings=shape.sequence, use_cache=False, attn_implementation=CAUSAL,
        )
    )  # fmt: skip
    return made if shape.gated else with_plain_experts(made)


def _latent(shape: Shape) -> torch.nn.Module:
    """Latent attention and experts as published: the defaults of transformers' configuration are DeepSeek-V3's."""
    made: torch.nn.Module = transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            num_hidden_layers=shape.layers, vocab_size=shape.vocabulary, use_cache=False, first_k_dense_replace=DENSE,
            attn_implementation=CAUSAL,
        )
    )  # fmt: skip
    return made


class _Bert(torch.nn.Module):
    """BERT in pretraining: the head sees the masked tokens alone, as published implementations run it."""

    def __init__(self, config: transformers.BertConfig) -> None:
        super().__init__()
        self.body = transformers.BertModel(config, add_pooling_layer=False)
        self.head = transformers.models.bert.modeling_bert.BertOnlyMLMHead(config)
        self.masked = ceil(MASKED * config.max_position_embeddings)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss of so many tokens of each row: which ones they are does not change what it costs."""
        values = self.body(input_ids).last_hidden_state[:, : self.masked]
        logits = self.head(values).float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, : self.masked].flatten())


def _bert(shape: Shape) -> torch.nn.Module:
    return _Bert(
        transformers.BertConfig(
            hidden_size=shape.hidden,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            vocab_size=shape.vocabulary,
            max_position_embeddings=shape.sequence,
        )
    )


BUILDERS: dict[str, Callable[[Shape], torch.nn.Module]] = {
    "gpt": _gpt, "mpt": _mpt, "squared": _squared, "llama": _llama, "moe": _mixture, "mla": _latent, "bert": _bert,
}  # fmt: skip
