"""Weights that a model's code reaches past their names, in lists, dicts, objects and functions, are the model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings, tracer
from placer.errors import UncapturableError
from pool import on_ranks

pytestmark = pytest.mark.in_turns

ROWS, WIDTH = 8, 4
BATCH = {"x": (ROWS, WIDTH), "y": (ROWS, WIDTH)}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9)
LAYOUTS: dict[str, dict[str, object]] = {
    "replicas": {"data": 2, "microbatches": 2},
    "stages": {"pipeline": 2, "microbatches": 2},
    "devices that divide ops": {"tensor": 2, "microbatches": 1},
}
Penalty = Callable[[], Tensor]


def squares(weights: Iterable[Tensor]) -> Tensor:
    return torch.stack([weight.square().sum() for weight in weights]).sum()


class Penaliser:
    """As people keep a penalty beside a model."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = list(model.named_parameters())

    def __call__(self) -> Tensor:
        return squares(weight for _, weight in self.weights)


def of_a_list(model: Penalised) -> Penalty:
    model.held = list(model.parameters())
    return lambda: squares(model.held)


def of_a_dict(model: Penalised) -> Penalty:
    held = {name: weight for name, weight in model.named_parameters() if "bias" not in name}
    return lambda: squares(held.values())


def of_pairs(model: Penalised) -> Penalty:
    held = tuple(model.named_parameters())
    return lambda: squares(weight for _, weight in held)


def of_the_model(model: Penalised) -> Penalty:
    return lambda: squares(model.parameters())


def of_a_default(model: Penalised) -> Penalty:
    def penalty(layers: Iterable[nn.Module] = model.layers) -> Tensor:
        return squares(weight for layer in layers for weight in layer.parameters())

    return penalty


def without_gradient(model: Penalised) -> Penalty:
    held = [model.out.weight]

    def penalty() -> Tensor:
        with torch.no_grad():
            scale: Tensor = held[0].norm() + 1
        return squares(held).div(scale)

    return penalty


class Penalised(nn.Module):
    """As DeepCTR keeps the weights that it penalises in a list; its layers are alike."""

    def __init__(self, penalty: Callable[[Penalised], Penalty]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(5)))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.held: list[nn.Parameter] = []
        self.penalty = penalty(self)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.out(self.layers(x)), y) + 0.1 * self.penalty()


class Counting(nn.Module):
    """Reads a buffer that it writes once more out of a list."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.held = [self.count]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.count += 1
        return functional.mse_loss(self.two(self.one(x)), y) / self.held[0]


HELD: dict[str, Callable[[Penalised], Penalty]] = {
    one.__name__: one
    for one in (of_a_list, of_a_dict, of_pairs, of_the_model, of_a_default, without_gradient, Penaliser)
}
globals().update({f"{name}_model": partial(Penalised, one) for name, one in HELD.items()})
of_a_buffer_model = Counting


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("held", ["of_a_list", "of_the_model", "of_a_buffer"])
def test_steps_are_those_of_one_device(held: str, layout: str) -> None:
    plan = placer.plan(
        f"{__name__}:{held}_model", "localx2", batch=BATCH, pins=LAYOUTS[layout], settings=SETTINGS, budget=50
    )
    expected = on_one_device(plan)
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


@pytest.mark.parametrize("held", HELD)
def test_their_gradients_are_the_models(held: str) -> None:
    torch.manual_seed(0)
    model = Penalised(HELD[held])
    batch = {name: torch.randn(shape) for name, shape in BATCH.items()}
    traced = tracer.trace(model, batch).module
    (loss,) = traced(*batch.values())
    found = dict(zip(*gradients(traced, loss), strict=True))
    told = model(**batch)
    assert torch.allclose(loss, told)
    for name, gradient in zip(*gradients(model, told), strict=True):
        assert torch.allclose(found[name], gradient, atol=1e-6), name


def gradients(model: nn.Module, loss: Tensor) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    names, weights = zip(*model.named_parameters(), strict=True)
    return names, torch.autograd.grad(loss, weights, materialize_grads=True)


def data_of_a_weight(weight: Tensor) -> object:
    return weight.data


def rows_in_a_list(weight: Tensor) -> object:
    return [weight.detach()[:2]]


class Box:
    """An object of one's own."""

    def __init__(self, held: Tensor) -> None:
        self.held = held


def data_in_an_object(weight: Tensor) -> object:
    return Box(weight.data)


def data_in_lists(weight: Tensor) -> object:
    return {"a": [[weight.detach()]]}


def data_in_a_function(weight: Tensor) -> object:
    held = weight.detach()
    return lambda: held


def data_read_in_forward(weight: Tensor) -> object:
    held = [weight]
    return lambda: held[0].data


ALIASES = [data_of_a_weight, rows_in_a_list, data_in_an_object, data_in_lists, data_in_a_function]


def found_in(held: object) -> Tensor:
    while not isinstance(held, Tensor):
        if isinstance(held, Box):
            held = held.held
        elif isinstance(held, dict):
            held = held["a"]
        else:
            held = held() if callable(held) else held[0]  # type: ignore[index]
    return held


class Beside(nn.Module):
    """Reads a tensor that it has in the memory of a weight, or of a buffer that stays."""

    table: Tensor

    def __init__(self, make: Callable[[Tensor], object], name: str) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("table", torch.ones(WIDTH, WIDTH))
        self.held = make(self.out.weight if name == "out.weight" else self.table)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.out(x), y) * found_in(self.held).sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("make", ALIASES)
def test_a_tensor_in_the_memory_of_a_weight_is_refused(make: Callable[[Tensor], object], device: str) -> None:
    with torch.device(device):
        model = Beside(make, "out.weight")
    with pytest.raises(UncapturableError, match=r"made of out.weight before the first step"):
        tracer.capture(model, batch=BATCH)


def test_data_of_a_held_weight_that_forward_reads_has_no_gradient() -> None:
    torch.manual_seed(0)
    model = Beside(data_read_in_forward, "out.weight")
    batch = {name: torch.randn(shape) for name, shape in BATCH.items()}
    traced = tracer.trace(model, batch).module
    (loss,), told = traced(*batch.values()), model(**batch)
    assert torch.allclose(loss, told)
    found, expected = (dict(zip(*gradients(*one), strict=True)) for one in ((traced, loss), (model, told)))
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=1e-6), name


@pytest.mark.parametrize("make", [data_of_a_weight, rows_in_a_list])
def test_a_tensor_in_the_memory_of_a_buffer_that_stays_is_what_it_is(make: Callable[[Tensor], object]) -> None:
    model, batch = Beside(make, "table"), {name: torch.randn(shape) for name, shape in BATCH.items()}
    assert torch.allclose(tracer.trace(model, batch).module(*batch.values())[0], model(**batch))
