"""Alike layers, of which three are exported where nothing hangs on the others: the loss and all gradients of the traced
model are the model's, whatever else is done with its layers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from placer.tracer import trace
from placer.tracer.export.folding import repeats
from placer.tracer.export.folds.witness import is_borne_out

pytestmark = pytest.mark.in_turns

WIDTH, LAYERS = 8, 6
MIDDLE = (2, 3)


class Layer(nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.own, self.layer_idx = nn.Linear(WIDTH, WIDTH), layer_idx
        self.scale = torch.tensor(1.0 + layer_idx)
        self.settings = {"factor": 1.0 + layer_idx}

    def forward(self, x: Tensor, by: Tensor | float = 1.0) -> Tensor:
        made: Tensor = torch.tanh(self.own(x)) * by
        return made


class ByIndex(Layer):
    def forward(self, x: Tensor, by: Tensor | float = 1.0) -> Tensor:
        return super().forward(x, 3.0 if self.layer_idx in MIDDLE else by)


class ByTensor(Layer):
    def forward(self, x: Tensor, by: Tensor | float = 1.0) -> Tensor:
        return super().forward(x, self.scale)


class BySettings(Layer):
    def forward(self, x: Tensor, by: Tensor | float = 1.0) -> Tensor:
        return super().forward(x, self.settings["factor"])


class Model(nn.Module):
    """Layers that are run as `run` says."""

    def __init__(self, run: Callable[[Model, Tensor], Tensor], kind: type[Layer] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(number) for number in range(LAYERS))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x).pow(2).mean()


def plain(model: Model, x: Tensor) -> Tensor:
    for layer in model.layers:
        x = layer(x)
    return x


def in_other_order(model: Model, x: Tensor) -> Tensor:
    for number in (0, 1, 3, 2, 4, 5):
        x = model.layers[number](x)
    return x


def one_twice(model: Model, x: Tensor) -> Tensor:
    for number in (0, 1, 2, 3, 3, 4, 5):
        x = model.layers[number](x)
    return x


def without_one(model: Model, x: Tensor) -> Tensor:
    for number, layer in enumerate(model.layers):
        x = x if number == MIDDLE[0] else layer(x)
    return x


def with_penalty(model: Model, x: Tensor) -> Tensor:
    penalty = torch.stack([weight.pow(2).sum() for weight in model.layers.parameters()]).sum()
    return plain(model, x) + penalty


def by_how_many(model: Model, x: Tensor) -> Tensor:
    return plain(model, x) * sum(weight.numel() for weight in model.layers.parameters())


def given_tensors(model: Model, x: Tensor) -> Tensor:
    for number, layer in enumerate(model.layers):
        x = layer(x, torch.tensor(1.0 + (number in MIDDLE)))
    return x


def other_between(model: Model, x: Tensor) -> Tensor:
    one, two = x.mean(0), x.amax(0)
    for number, layer in enumerate(model.layers):
        x = layer(x) * (two if number in MIDDLE else one)
    return x


def ungraded_between(model: Model, x: Tensor) -> Tensor:
    for number, layer in enumerate(model.layers):
        with torch.no_grad() if number in MIDDLE else contextlib.nullcontext():
            x = layer(x)
    return x


def set_before(model: Model, x: Tensor) -> Tensor:
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        layer.settings["factor"] = 2.0 if number in MIDDLE else 1.0
        x = layer(x)
    return x


RUNS = (
    plain, in_other_order, one_twice, without_one, with_penalty, by_how_many, given_tensors, other_between,
    ungraded_between,
)  # fmt: skip
MODELS: dict[str, Callable[[], nn.Module]] = {run.__name__: lambda run=run: Model(run) for run in RUNS}  # type: ignore[misc]
MODELS |= {kind.__name__: lambda kind=kind: Model(plain, kind) for kind in (ByIndex, ByTensor, BySettings)}  # type: ignore[misc]
MODELS["set_before"] = lambda: Model(set_before, BySettings)


def borne_out(model: nn.Module) -> bool:
    meta = copy.deepcopy(model).to("meta")
    return is_borne_out(meta, None, {}, ({"x": torch.randn(4, WIDTH, device="meta")}, {}), repeats(meta))


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_the_models(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]().double(), torch.randn(4, WIDTH, dtype=torch.float64)
    traced = trace(copy.deepcopy(model), {"x": x}).module
    (loss,) = traced(x)
    loss.backward()
    told = model(x)
    told.backward()
    assert torch.allclose(loss, told, rtol=1e-12, atol=0)
    made = dict(traced.named_parameters())
    for weight, parameter in model.named_parameters():
        theirs, ours = parameter.grad, made[weight].grad if weight in made else None
        zero = torch.zeros_like(parameter)
        assert torch.allclose(zero if ours is None else ours, zero if theirs is None else theirs, atol=1e-12), weight


def test_alike_layers_one_after_the_other_are_borne_out() -> None:
    assert repeats(MODELS["plain"]())
    assert borne_out(MODELS["plain"]())


def test_layers_whose_gradients_somebody_looks_at_are_no_repeat() -> None:
    model = Model(plain)
    model.layers[2].register_full_backward_pre_hook(lambda *_: None)
    assert all(2 not in range(each.start, each.start + each.count) for each in repeats(model))
