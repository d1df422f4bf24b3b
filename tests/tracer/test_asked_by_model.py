"""What a Hugging Face model asks for and a plan decides instead is said."""

from __future__ import annotations

import transformers

from placer.tracer import capture

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 64,
}  # fmt: skip
BATCH = {"input_ids": (4, 8), "labels": (4, 8)}


def notes(config: transformers.LlamaConfig, *, checkpoints: bool = False) -> str:
    model = transformers.LlamaForCausalLM(config).float()
    if checkpoints:
        model.activation_checkpointing_enable()
    return " ".join(capture(model, batch=BATCH).notes)


def test_gradient_checkpointing_and_a_type_that_the_configuration_names_are_said() -> None:
    said = notes(transformers.LlamaConfig(**SMALL, dtype="bfloat16"), checkpoints=True)
    for word in ("gradient checkpointing", "--recompute full", "names bfloat16", "--precision bfloat16"):
        assert word in said


def test_a_model_that_asks_for_neither_hears_of_neither() -> None:
    assert notes(transformers.LlamaConfig(**SMALL)) == ""
