"""Three small models, each some tenths of a second of one core per step, and their batches."""

from __future__ import annotations

from dataclasses import dataclass

import transformers
from torch import nn

from placer.plans.settings import Precision

ROWS = 16
LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A factory by its name, the shapes of its batch, the precision it is run in, and an axis its ops are cut along."""

    reference: str
    batch: dict[str, tuple[int, ...]]
    axis: str
    precision: Precision = "float64"


def gpt() -> nn.Module:
    """A GPT-2 of 6 layers, 1.2 M parameters."""
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=6, n_embd=128, n_head=4, vocab_size=256, n_positions=LENGTH,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def resnet() -> nn.Module:
    """A ResNet of 6 basic blocks in two stages, 0.3 M parameters."""
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=32, hidden_sizes=[32, 64], depths=[3, 3], layer_type="basic", num_labels=10
        )
    )


def moe() -> nn.Module:
    """A Mixtral of 4 layers with 4 experts, 2 of them for each token, 1.5 M parameters."""
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            num_hidden_layers=4, hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=256, max_position_embeddings=LENGTH, num_local_experts=4, num_experts_per_tok=2,
            bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def _text() -> dict[str, tuple[int, ...]]:
    return {"input_ids": (ROWS, LENGTH), "labels": (ROWS, LENGTH)}


# The product of sorted rows by their experts casts to float32, so that the experts are held to that.
MODELS = {
    "gpt": Model(reference="examples.measured.emulated.models:gpt", batch=_text(), axis="tensor"),
    "resnet": Model(
        reference="examples.measured.emulated.models:resnet",
        batch={"pixel_values": (ROWS, 3, 64, 64), "labels": (ROWS,)},
        axis="height",
    ),
    "moe": Model(reference="examples.measured.emulated.models:moe", batch=_text(), axis="expert", precision="float32"),
}
