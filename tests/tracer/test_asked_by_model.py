"""What a Hugging Face model asks for and a plan decides instead is said; what is known of its parts by name."""

from __future__ import annotations

import builtins
import sys

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from placer.errors import UncapturableError
from placer.rules.rows import whole_batch_reason
from placer.tracer import capture
from placer.tracer.export.exporting import Training, export
from placer.tracer.parts_to_blame import cost_of

pytestmark = pytest.mark.in_turns

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


def bloom() -> transformers.BloomForCausalLM:
    return transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4))


def test_a_batch_of_bloom_may_be_divided_though_nothing_looks_into_its_activation() -> None:
    graph = capture(bloom(), batch=BATCH)
    assert any("gelu_impl cannot be exported" in note for note in graph.notes)
    assert not whole_batch_reason(graph, statistics=True)


@pytest.mark.parametrize("doing", ["register_forward_hook", "register_full_backward_hook"])
def test_a_hook_on_an_activation_may_mix_its_rows(doing: str) -> None:
    model = bloom()
    getattr(model.transformer.h[0].mlp.gelu_impl, doing)(lambda part, *given: None)
    assert not cost_of(model.transformer.h[0].mlp.gelu_impl).rows_apart
    assert cost_of(bloom().transformer.h[0].mlp.gelu_impl).rows_apart


def test_an_activation_with_a_forward_of_its_own_is_not_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    activation = bloom().transformer.h[0].mlp.gelu_impl
    monkeypatch.setattr(type(activation), "forward", lambda part, x: x - x.mean(0))
    assert not cost_of(activation).rows_apart


class Asking(nn.Module):
    """Asks for the classes of what it has."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), weight

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        if type(h) is torch.Tensor and type(labels) in (torch.Tensor, list):
            h = h * 2
        if type(self.weight) == nn.Parameter:  # noqa: E721 - as people write it
            h = h * self.weight
        kind = type("Kind", (type,), {})
        shift = 3 if isinstance(kind, type) and issubclass(kind, type) and not isinstance(h, int | type) else 0
        match kind:
            case type():
                shift += type.__call__(int, 1)
        return functional.mse_loss(h + shift, labels)


class Scaled(nn.Parameter):
    """A parameter of a class of its own."""


def test_classes_that_forward_asks_for_are_those_of_eager() -> None:
    model, batch = Asking(nn.Parameter(torch.rand(4))), {"x": torch.rand(3, 4), "labels": torch.rand(3, 4)}
    assert torch.equal(export(Training(model, None), batch).module(**batch)[0], model(**batch))
    assert "type" not in vars(sys.modules[__name__]) and type is builtins.type


def test_classes_of_parameters_that_an_export_does_not_tell_apart_are_refused() -> None:
    batch = {"x": torch.rand(3, 4), "labels": torch.rand(3, 4)}
    with pytest.raises(UncapturableError, match=r"class of a parameter.*Scaled.*isinstance"):
        export(Training(Asking(Scaled(torch.rand(4))), None), batch)
