"""What ranks run for the tests of the runtime, found by import."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from examples.parity.cases import capture_of, run_case
from placer import tracer
from placer.plans.plan import Plan
from placer.runtime import VerifyReport, load
from placer.runtime.data_parallel import optimizer as optimizers
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.data_parallel.optimizer import Updater


def one(plan: Plan) -> VerifyReport:
    """Verify a plan."""
    return run_case(plan, 3)


def on_host(plan: Plan) -> VerifyReport:
    """Verify a plan whose ranks have the optimizer's state apart from their devices, though these are processes."""
    with mock.patch.object(optimizers, "host_of", _host):
        return run_case(plan, 3)


def _host(plan: Plan, device: torch.device) -> torch.device:
    return torch.device("cpu")


def with_lost_reduction(plan: Plan) -> VerifyReport:
    """A runtime that forgets to sum gradients over replicas."""
    with mock.patch.object(Gradients, "_reduce_bucket"):
        return run_case(plan, 1)


def with_wrong_update(plan: Plan) -> VerifyReport:
    """A runtime that updates twice."""
    step = Updater.step

    def twice(self: Updater, scale: float) -> None:
        kept = {name: p.grad for name, p in self.named.items()}
        step(self, scale)
        for name, parameter in self.named.items():
            parameter.grad = kept[name]
        step(self, scale)

    with mock.patch.object(Updater, "step", twice):
        return run_case(plan, 1)


def kernels(plan: Plan) -> dict[str, int]:
    """How often each op of torch ran on this rank in a step, by name."""
    executor, counted = load(plan, capture=capture_of(plan)), Counter[str]()

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted[op._schema.name.removeprefix("aten::")] += 1
            return op(*args, **(kwargs or {}))

    with Counting():  # type: ignore[no-untyped-call]
        executor.step(tracer.random_batch(plan.graph, plan.rows, 3))
    return dict(counted)


def trained_and_loaded(plan: Plan) -> tuple[float, float]:
    """The loss after two steps, and that of a fresh executor that was given the state of the first."""
    batch = tracer.random_batch(plan.graph, plan.rows, 3)
    batch = {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}
    first = load(plan, capture=capture_of(plan))
    for _ in range(2):
        first.step(batch)
    state = first.full_state_dict()
    again = load(plan, capture=capture_of(plan))
    again.load_state_dict(state)
    return first.evaluate(batch), again.evaluate(batch)


def losses(plan: Plan, steps: int) -> list[float]:
    """The losses of some steps on one batch, in the plan's precision."""
    executor = load(plan, capture=capture_of(plan))
    dtype = torch.float64 if plan.settings.precision == "float64" else torch.float32
    made = tracer.random_batch(plan.graph, plan.rows, 0)
    batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in made.items()}
    return [executor.step(batch) for _ in range(steps)]


def tied_weights(plan: Plan) -> list[torch.Tensor]:
    """This rank's copies of the tied embedding after three steps."""
    executor = load(plan, capture=capture_of(plan))
    for step in range(3):
        executor.step(tracer.random_batch(plan.graph, plan.rows, step))
    name = next(iter(plan.graph.tied))
    held = [stage.own_parameters() for stage in executor.stages.values()]
    return [named[name].detach().clone() for named in held if name in named]


class RepeatedWords(nn.Module):
    """Words that are both read and foretold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Recurrent(nn.Module):
    """Two recurrent layers that drop nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(4, 8, 2, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.second(self.first(x)[0])[0][:, -1]), labels)


class Scores(nn.Module):
    """Scores without a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


def repeated_words() -> nn.Module:
    return RepeatedWords()


def recurrent() -> nn.Module:
    return Recurrent()


def scores() -> nn.Module:
    torch.manual_seed(0)
    return Scores()


def loss(output: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    assert isinstance(output, torch.Tensor)
    return functional.cross_entropy(output, batch["labels"])
