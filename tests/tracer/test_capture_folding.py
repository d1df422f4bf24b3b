"""Repeated layers are captured once, whatever the length of the cycle they repeat, and the Graph is the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import transformers
from torch import nn

from placer.graph import Graph
from placer.tracer import capture, trace
from placer.tracer.export.folding import repeats

pytestmark = pytest.mark.in_turns

WIDTH = 8
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 64, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "sliding_window": 4,
}  # fmt: skip


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return y


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.own(x))


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.own(x).sigmoid() * x
        return y


KINDS: dict[str, type[nn.Module]] = {"W": Wide, "N": Narrow, "G": Gate}


class Tower(nn.Module):
    """Layers by their letters; between them the first value is added, or written in place."""

    def __init__(self, letters: str, *, skip: bool = False, in_place: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(KINDS[letter]() for letter in letters)
        self.last = nn.Linear(WIDTH, 3)
        self.skip, self.in_place = skip, in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.last.weight.sum() * x
        for layer in self.layers:
            x = layer(x)
            if self.in_place:
                x += first
            elif self.skip:
                x = x + first
        scores: torch.Tensor = self.last(x)
        return scores


class Scaled(nn.Module):
    """Equal layers, of which some are given another scale by their place."""

    def __init__(self, layers: int, other: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scaling() for _ in range(layers))
        self.other = other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = x.mean(-1, keepdim=True), x.amax(-1, keepdim=True)
        for index, layer in enumerate(self.layers):
            x = layer(x, scale=scales[index in self.other])
        return x


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.own(x) * scale
        return y


def both(model: nn.Module, batch: dict[str, tuple[int, ...]]) -> tuple[Graph, Graph]:
    return capture(model, batch=batch), capture(model, batch=batch, fold=False)


@pytest.mark.parametrize(
    ("letters", "period"),
    [("N" * 5, 1), ("NW" * 4, 2), ("W" + "NW" * 4 + "NN", 2), ("NWG" * 4 + "NW", 3), ("NNNNNW" * 4, 6)],
)
def test_layers_that_alternate_are_captured_as_if_one_by_one(letters: str, period: int) -> None:
    model = Tower(letters)
    (found,) = repeats(model)
    assert found.period == period
    folded, full = both(model, {"x": (4, WIDTH)})
    assert folded == full
    assert len({block.kind for block in folded.blocks}) == len(set(letters)) + 2
    of_layer = {"N": WIDTH**2, "W": 2 * 16 * WIDTH, "G": WIDTH**2}
    assert folded.forward_flops == 2 * 4 * (sum(of_layer[letter] for letter in letters) + 3 * WIDTH)


@pytest.mark.parametrize("how", ["skip", "in_place"])
def test_what_the_model_does_between_layers_is_neither_lost_nor_repeated(how: str) -> None:
    folded, full = both(Tower("NW" * 5, **{how: True}), {"x": (4, WIDTH)})
    assert folded == full


@pytest.mark.parametrize("other", [(), (0,), (5,), (10,), (4, 5, 6), range(1, 11, 2)], ids=str)
def test_equal_layers_that_are_given_something_else_keep_it(other: Sequence[int]) -> None:
    folded, full = both(Scaled(11, other), {"x": (4, WIDTH)})
    assert folded == full


def global_then_local() -> nn.Module:
    """Attention over a window in the last layers: the mask of layer i is looked up by i."""
    config = transformers.Qwen2Config(**SMALL, num_hidden_layers=9, use_sliding_window=True, max_window_layers=4)
    made: nn.Module = transformers.Qwen2ForCausalLM(config)
    return made


def dense_and_experts() -> nn.Module:
    """A mixture of experts in every other layer."""
    config = transformers.Qwen3MoeConfig(
        **SMALL, num_hidden_layers=8, decoder_sparse_step=2, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16,
    )  # fmt: skip
    made: nn.Module = transformers.Qwen3MoeForCausalLM(config)
    return made


@pytest.mark.parametrize("factory", [global_then_local, dense_and_experts])
def test_models_whose_layers_alternate_are_captured_as_if_one_by_one(factory) -> None:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        model = factory()
    assert repeats(model)
    folded, full = both(model, {"input_ids": (2, 12)})
    assert folded == full
    layers = [block for block in folded.blocks if ".layers." in block.name]
    # Experts, or a mask where others have a flag.
    assert len({block.kind for block in layers}) == 2


class SeveredLayers(nn.Module):
    """Alike layers, of which one is followed by what the others are not."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.layers, self.at = nn.ModuleList(nn.Linear(8, 8) for _ in range(6)), at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x).tanh()
            if index == self.at:
                x = x.detach()
        return x.sum()


@pytest.mark.parametrize("at", range(6))
def test_what_a_model_does_behind_one_layer_only_is_kept(at: int) -> None:
    folded, whole = (capture(SeveredLayers(at), batch={"x": (4, 8)}, fold=fold) for fold in (True, False))
    assert folded == whole


class Shrinking(nn.Module):
    """Equal convolutions, each of which halves the length, by which is divided behind them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.layers(x)
        return hidden.sum(-1) / hidden.shape[-1]


def test_sizes_behind_equal_layers_that_shrink_are_those_behind_the_last() -> None:
    model, x = Shrinking(5), torch.randn(4, WIDTH, 64)
    (traced,) = trace(model, {"x": x}).module(x)
    assert torch.equal(traced, model(x))
