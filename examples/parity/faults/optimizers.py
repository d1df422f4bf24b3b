"""Faults of the update: constants of the optimizer, what is updated, when, and by which gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn

from examples.parity.faults.fault import Fault, Plant, method, replaced
from placer.plans.settings import RunSettings
from placer.runtime.data_parallel import optimizer as optimizers
from placer.runtime.data_parallel.given_parameters import OptimizerFactory
from placer.runtime.data_parallel.optimizer import Updater

Real = Callable[..., Any]
ADAMW, SGD = "pipeline", "pipeline, sgd"


def setting(**wrong: object) -> Plant:
    """An optimizer made from other numbers than the plan's."""

    def make(real: Real, settings: RunSettings, *, fused: bool = False) -> OptimizerFactory:
        changed = dataclasses.replace(settings, **wrong)  # type: ignore[arg-type]  # fields by name
        return real(changed, fused=fused)

    return lambda: replaced(optimizers.optimizer_factory, make)


def _of(make: Callable[[list[nn.Parameter], RunSettings], torch.optim.Optimizer]) -> Plant:
    """Another optimizer than the plan's."""

    def factory(real: Real, settings: RunSettings, *, fused: bool = False) -> OptimizerFactory:
        def made(given: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            return make(list(given), settings)

        return made

    return lambda: replaced(optimizers.optimizer_factory, factory)


def _coupled_decay(given: list[nn.Parameter], settings: RunSettings) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        given, settings.learning_rate, settings.betas, settings.epsilon, weight_decay=settings.weight_decay
    )


def _nesterov(given: list[nn.Parameter], settings: RunSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        given, settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay, nesterov=True
    )


def _dampened(given: list[nn.Parameter], settings: RunSettings) -> torch.optim.Optimizer:
    return torch.optim.SGD(given, settings.learning_rate, settings.momentum, 0.1, settings.weight_decay)


def _uncorrected(given: list[nn.Parameter], settings: RunSettings) -> torch.optim.Optimizer:
    """AdamW that counts one step more, as one that corrects its moments' bias by the wrong step."""
    made = torch.optim.AdamW(
        given, settings.learning_rate, settings.betas, settings.epsilon, settings.weight_decay, foreach=False
    )
    for parameter in given:
        made.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return made


def _update_twice(real: Real, self: Updater, scale: float) -> None:
    kept = {name: None if p.grad is None else p.grad.clone() for name, p in self.named.items()}
    real(self, scale)
    for name, parameter in self.named.items():
        parameter.grad = kept[name]
    real(self, 1.0)


def _one_left(real: Real, self: Updater, scale: float) -> None:
    self.named[sorted(self.named)[0]].grad = None
    real(self, scale)


def _one_step_late(real: Real, self: Updater, scale: float) -> None:
    """The gradients of a step are applied after the next one, which so computes with stale weights."""
    waiting: dict[str, torch.Tensor] = vars(self).setdefault("waiting", {})
    now = {name: p.grad.clone() for name, p in self.named.items() if p.grad is not None}
    for name, parameter in self.named.items():
        parameter.grad = waiting.get(name, torch.zeros_like(parameter))
    vars(self)["waiting"] = now
    real(self, scale)


def _kept_gradients(real: Real, self: Updater) -> None:
    for parameter in self.updated.values():
        if all(parameter is not own for own in self.named.values()):
            parameter.grad = None


def _frozen_too(real: Real, self: Updater, scale: float) -> None:
    real(self, scale)
    seen: dict[str, torch.Tensor] = vars(self)["frozen"]
    for tensor in seen.values():
        tensor.mul_(0.999)


def _with_frozen(real: Real, self: Updater, named: dict[str, nn.Parameter], *given: object, **kwargs: object) -> None:
    real(self, named, *given, **kwargs)
    vars(self)["frozen"] = {name: p.detach() for name, p in named.items() if not p.requires_grad}


def _frozen() -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(method(Updater, "__init__", _with_frozen))
    stack.enter_context(method(Updater, "step", _frozen_too))
    return stack


def _rounded_masters(real: Real, self: Updater) -> None:
    """Masters that forget what the weights cannot say."""
    real(self)
    self.refresh_masters()


FAULTS = (
    Fault(name="AdamW's second beta 0.999", subject=ADAMW, plant=setting(betas=(0.9, 0.999))),
    Fault(name="AdamW's first beta 0.8", subject=ADAMW, plant=setting(betas=(0.8, 0.95))),
    Fault(name="AdamW's epsilon 1e-6", subject=ADAMW, plant=setting(epsilon=1e-6)),
    Fault(name="no weight decay", subject=ADAMW, plant=setting(weight_decay=0.0)),
    Fault(name="weight decay added to gradients (Adam)", subject=ADAMW, plant=_of(_coupled_decay)),
    Fault(name="the learning rate one part in a thousand too large", subject=ADAMW,
          plant=setting(learning_rate=1.001e-3)),
    Fault(name="bias corrected by the wrong step", subject=ADAMW, plant=_of(_uncorrected)),
    Fault(name="momentum dropped", subject=SGD, plant=setting(momentum=0.0)),
    Fault(name="momentum of Nesterov", subject=SGD, plant=_of(_nesterov)),
    Fault(name="momentum dampened", subject=SGD, plant=_of(_dampened)),
    Fault(name="every update made twice", subject=ADAMW, plant=lambda: method(Updater, "step", _update_twice)),
    Fault(name="one parameter is not updated", subject=ADAMW, plant=lambda: method(Updater, "step", _one_left)),
    Fault(name="weights stale by one step", subject=ADAMW, plant=lambda: method(Updater, "step", _one_step_late)),
    Fault(name="gradients of the step before are added", subject=ADAMW,
          plant=lambda: method(Updater, "clear", _kept_gradients)),
    Fault(name="frozen parameters decay", subject="adapters", plant=_frozen),
    Fault(name="masters of 16-bit weights rounded to the weights", subject="bfloat16",
          plant=lambda: method(Updater, "copy_masters", _rounded_masters)),
)  # fmt: skip
