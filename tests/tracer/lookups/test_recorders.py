"""What is seen of the layers of a model while they run, by hooks, by a library or in one place of all, is seen of every
layer: of alike ones some are not exported."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from placer.tracer import trace
from placer.tracer.export.folding import repeats

pytestmark = pytest.mark.in_turns

WIDTH, LAYERS = 8, 6
SEEN: list[Tensor] = []


def note(made: Tensor) -> None:
    SEEN.append(made)


class Layer(nn.Module):
    """Leaves what it makes in a list of all layers, with what keeps such a list, or in one of the file."""

    def __init__(self, seen: list[Tensor], keep: Callable[[Tensor], None], where: str) -> None:
        super().__init__()
        self.own, self.seen, self.keep, self.where = nn.Linear(WIDTH, WIDTH), seen, keep, where

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.tanh(self.own(x))
        if self.where == "list":
            self.seen.append(made)
        elif self.where == "callback":
            self.keep(made)
        elif self.where == "function":
            note(made)
        else:
            SEEN.append(made)
        return made


class Places(nn.Module):
    """Reads what one layer left, by its number."""

    def __init__(self, number: int, where: str) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.number, self.where = number, where
        self.layers = nn.Sequential(*(Layer(self.seen, self.keep, where) for _ in range(LAYERS)))

    def keep(self, made: Tensor) -> None:
        self.seen.append(made)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.seen if self.where in ("list", "callback") else SEEN
        seen.clear()
        last: Tensor = self.layers(x)
        chosen = seen[self.number]
        seen.clear()
        return last.mean() + chosen.pow(2).mean()


class Hooked(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.number = number
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        for layer in self.layers:
            layer.register_forward_hook(self.see)

    def see(self, _: nn.Module, __: object, made: Tensor) -> None:
        self.seen.append(made)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        last: Tensor = self.layers(x)
        chosen = self.seen[self.number]
        self.seen.clear()
        return last.mean() + chosen.pow(2).mean()


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=64, num_local_experts=4, output_router_logits=True, router_aux_loss_coef=1.0, initializer_range=0.5,
        use_cache=False,
    )  # fmt: skip
    made: nn.Module = transformers.MixtralForCausalLM(config)
    return made


class Attentions(nn.Module):
    """Reads what a library collects of one layer."""

    def __init__(self, number: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=48, vocab_size=64,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3,
            attn_implementation="eager",
        )  # fmt: skip
        self.model, self.number = transformers.BertModel(config), number

    def forward(self, input_ids: Tensor) -> Tensor:
        made = self.model(input_ids, output_attentions=True)
        chosen: Tensor = made.attentions[self.number].pow(2).mean() + made.last_hidden_state.mean()
        return chosen


def equal(model: nn.Module, batch: dict[str, Tensor]) -> bool:
    traced = trace(copy.deepcopy(model), batch).module(*batch.values())
    told = model(**batch)
    return torch.allclose(traced[0], told.loss if hasattr(told, "loss") else told, rtol=1e-6, atol=0)


@pytest.mark.parametrize("number", (0, 1, 2, 3, -1))
@pytest.mark.parametrize("where", ("list", "callback", "function", "file"))
def test_what_one_of_alike_layers_left_is_its_own(where: str, number: int) -> None:
    assert equal(Places(number, where), {"x": torch.randn(4, WIDTH)})


@pytest.mark.parametrize("number", (0, 1, 2, 3, -1))
def test_what_a_hook_sees_of_one_of_alike_layers_is_its_own(number: int) -> None:
    assert equal(Hooked(number), {"x": torch.randn(4, WIDTH)})


def test_a_hook_of_every_module_sees_every_layer() -> None:
    model = Hooked(2)
    assert not repeats(model)
    for layer in model.layers:
        layer._forward_hooks.clear()
    assert repeats(model)
    handle = register_module_forward_hook(lambda *_: None)
    try:
        assert not repeats(model)
    finally:
        handle.remove()


def test_losses_of_all_routers_count() -> None:
    ids = torch.randint(0, 64, (4, 6))
    assert equal(mixtral(), {"input_ids": ids, "labels": ids})


@pytest.mark.parametrize("number", (1, 2, -2))
def test_what_a_library_collects_of_one_layer_is_its_own(number: int) -> None:
    assert equal(Attentions(number), {"input_ids": torch.randint(0, 64, (4, 6))})
