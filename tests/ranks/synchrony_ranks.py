"""Local SGD, delayed and compressed gradients on ranks, and the same algorithms by hand in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from examples.parity.cases import capture_of
from placer import tracer
from placer.plans.plan import Plan
from placer.runtime import load
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.data_parallel.synchrony import Synchrony
from placer.runtime.stages.microbatch import microbatch_rows
from placer.runtime.weights.meta_model import prepared_model

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Losses of the steps and what the parameters were afterwards."""

    losses: list[float]
    state: dict[str, torch.Tensor]


def batches(plan: Plan, steps: int) -> list[Batch]:
    return [tracer.random_batch(plan.graph, plan.rows, seed) for seed in range(steps)]


def trained(plan: Plan, synchrony: Synchrony, steps: int, read_at: int = 0) -> Outcome:
    """What placer makes of it; read_at: the step after which the weights are read."""
    executor = load(plan, capture=capture_of(plan), synchrony=synchrony)
    losses = []
    for number, batch in enumerate(batches(plan, steps)):
        losses.append(executor.step(batch))
        if number + 1 == read_at:
            executor.full_state_dict()
    return Outcome(losses=losses, state=executor.full_state_dict())


def steps_of_a_saved_state(plan: Plan, synchrony: Synchrony) -> list[float]:
    """How many updates the optimizer's state says were made, as it is saved after one step, and after another."""
    executor, found = load(plan, capture=capture_of(plan), synchrony=synchrony), []
    for batch in batches(plan, 2):
        executor.step(batch)
        states = TrainingState(executor).state_dict()["optimizer"]
        assert isinstance(states, dict)
        own = next(iter(states.values()))
        assert isinstance(own, dict) and isinstance(own["step"], torch.Tensor)
        found.append(float(own["step"]))
    return found


def evaluated(plan: Plan, synchrony: Synchrony, steps: int) -> float:
    """The loss in evaluation after some steps."""
    executor = load(plan, capture=capture_of(plan), synchrony=synchrony)
    for batch in batches(plan, steps):
        executor.step(batch)
    return executor.evaluate(tracer.random_batch(plan.graph, plan.rows, steps))


def by_hand_local(plan: Plan, every: int, steps: int, read_at: int = 0) -> Outcome:
    """One model and optimizer per replica, averaged by rows."""
    return averaged_by_hand(plan, every, steps, read_at)[0]


def averaged_by_hand(plan: Plan, every: int, steps: int, read_at: int = 0) -> tuple[Outcome, list[list[float]]]:
    """The same, and the losses of each replica's own rows."""
    count = plan.stages[0].replicas
    models = [_model(plan) for _ in range(count)]
    optimizers = [_optimizer(plan, model) for model in models]
    own: list[list[float]] = [[] for _ in models]
    for number, batch in enumerate(batches(plan, steps)):
        for replica, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            loss = _loss(model, batch, own_rows(plan, replica))
            _step(plan, model, optimizer, loss)
            own[replica].append(float(loss.detach()))
        if (number + 1) % every == 0 or number + 1 in (read_at, steps):
            _average(plan, models, optimizers)
    losses = [
        sum(share * loss for share, loss in zip(shares(plan), each, strict=True)) for each in zip(*own, strict=True)
    ]
    return Outcome(losses=losses, state=_state(models[0])), own


def by_hand_stale(plan: Plan, staleness: int, steps: int, read_at: int = 0) -> Outcome:
    """One model, whose gradients wait in a list."""
    model = _model(plan)
    optimizer = _optimizer(plan, model)
    waiting: list[list[torch.Tensor]] = []
    losses = []
    for number, batch in enumerate(batches(plan, steps)):
        loss = _loss(model, batch, list(range(plan.rows)))
        losses.append(float(loss.detach()))
        waiting.append(list(torch.autograd.grad(loss, list(model.parameters()))))
        keep = 0 if number + 1 in (read_at, steps) else staleness
        while len(waiting) > keep:
            for parameter, gradient in zip(model.parameters(), waiting.pop(0), strict=True):
                parameter.grad = gradient
            _update(plan, model, optimizer)
    return Outcome(losses=losses, state=_state(model))


def by_hand_compressed(plan: Plan, steps: int, whole: tuple[str, ...] = ()) -> Outcome:
    """One model, whose gradients are added up replica by replica in 16 bits, those of parameters in `whole` as they
    are."""
    model = _model(plan)
    optimizer, dtype = _optimizer(plan, model), getattr(torch, plan.settings.gradient_compression)
    losses, parameters = [], list(model.parameters())
    for batch in batches(plan, steps):
        parts, loss = [], 0.0
        for replica, share in enumerate(shares(plan)):
            own = share * _loss(model, batch, own_rows(plan, replica))
            parts.append(torch.autograd.grad(own, parameters))
            loss += float(own.detach())
        for (name, parameter), *gradients in zip(model.named_parameters(), *parts, strict=True):
            to = parameter.dtype if name in whole else dtype
            total = gradients[0].to(to)
            for gradient in gradients[1:]:
                total = total + gradient.to(to)
            parameter.grad = total.to(parameter.dtype)
        _update(plan, model, optimizer)
        losses.append(loss)
    return Outcome(losses=losses, state=_state(model))


def own_rows(plan: Plan, replica: int) -> list[int]:
    return [row for rows in microbatch_rows(plan, 0, replica) for row in rows]


def shares(plan: Plan) -> list[float]:
    return [len(own_rows(plan, replica)) / plan.rows for replica in range(plan.stages[0].replicas)]


def _model(plan: Plan) -> nn.Module:
    return prepared_model(plan, None, torch.device("cpu"))


def _optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    made: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(
            model.parameters(), lr=settings.learning_rate, momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        ),
        "adamw": lambda: torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        ),
    }  # fmt: skip
    settings = plan.settings
    return made[settings.optimizer]()


def _loss(model: nn.Module, batch: Batch, rows: list[int]) -> torch.Tensor:
    loss = model(**{name: tensor[rows] for name, tensor in batch.items()})
    assert isinstance(loss, torch.Tensor)
    return loss


def _step(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    torch.autograd.backward(loss)
    _update(plan, model, optimizer)


def _update(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if plan.settings.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.settings.clip_norm)
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def _average(plan: Plan, models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    every = [_tensors(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)]
    for same in zip(*every, strict=True):
        mean = torch.stack([share * t for share, t in zip(shares(plan), same, strict=True)]).sum(0)
        for tensor in same:
            tensor.copy_(mean)


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for parameter in model.parameters():
        values = optimizer.state[parameter].values()
        found += [parameter, *(value for value in values if isinstance(value, torch.Tensor) and value.dim())]
    return found


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: copy.deepcopy(tensor.detach()) for name, tensor in model.state_dict().items()}
