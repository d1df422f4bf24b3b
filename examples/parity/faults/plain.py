"""The faults' own judge, which shares nothing with `verify`: a plain loop over the whole batch, and how far results of
the runtime are from it.

Dropout takes the masks, and other random numbers are those, of the runtime as it is without a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from placer import tracer
from placer.plans.plan import Plan
from placer.runtime.stages.captured_model import run_dtype
from placer.runtime.stages.draws import draw
from placer.runtime.stages.dropout import kept
from placer.runtime.stages.keyed_numbers import NO_ROW, row_keys
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.rewrite import FIRST_DRAW
from placer.runtime.weights.meta_model import prepared_model

Batch = dict[str, torch.Tensor]
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What steps gave: losses, the gradients and weights of each step, the loss of the last batch in evaluation."""

    losses: tuple[float, ...]
    gradients: tuple[Mapping[str, torch.Tensor], ...]
    states: tuple[Mapping[str, torch.Tensor], ...]
    evaluated: float


def batches(plan: Plan, steps: int) -> list[Batch]:
    """Random ones, with labels left out unevenly where rows have several."""
    found = []
    for step in range(steps):
        batch = tracer.random_batch(plan.graph, plan.rows, step)
        batch = {name: tensor.to(run_dtype(plan, tensor.dtype)) for name, tensor in batch.items()}
        labels = batch["labels"]
        if not labels.is_floating_point() and labels.dim() > 1:
            for row in range(plan.rows):
                labels[row, : row % 3 * labels.shape[1] // 4] = _IGNORED
        found.append(batch)
    return found


def plain_loop(plan: Plan, steps: int) -> Trained:
    """The model as it is, on the whole batch, by torch's own optimizer."""
    model = prepared_model(plan, None, torch.device("cpu"))
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sixteen = any(p.element_size() == 2 for p in learnt.values())
    masters = {name: nn.Parameter(p.detach().float()) for name, p in learnt.items()} if sixteen else learnt
    optimizer = _optimizer(plan, list(masters.values()))
    losses, gradients, states, given = [], [], [], batches(plan, steps)
    for step, batch in enumerate(given):
        model.zero_grad(set_to_none=True)
        with _dropping(plan, step), _drawing(plan, step):
            loss = _loss(model, batch)
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
        gradients.append({name: p.grad.clone() for name, p in learnt.items() if p.grad is not None})
        for name, master in masters.items():
            gradient = learnt[name].grad
            master.grad = None if gradient is None else gradient.to(master.dtype)
        if plan.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(masters.values(), plan.settings.clip_norm)
        optimizer.step()
        with torch.no_grad():
            for name, master in masters.items():
                learnt[name].copy_(master)
        states.append({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
    model.eval()
    with torch.no_grad(), _drawing(plan, steps):
        evaluated = float(_loss(model, given[-1]))
    return Trained(losses=tuple(losses), gradients=tuple(gradients), states=tuple(states), evaluated=evaluated)


def distance(found: Trained, expected: Trained) -> float:
    """The largest error of any number, relative to the largest of its tensor."""
    errors = [_scalar(a, b) for a, b in zip(found.losses, expected.losses, strict=True)]
    errors.append(_scalar(found.evaluated, expected.evaluated))
    for ours, theirs in zip((*found.gradients, *found.states), (*expected.gradients, *expected.states), strict=True):
        largest = max(float(t.double().abs().max()) for t in theirs.values())
        errors += [math.inf if name not in ours else _tensor(ours[name], t, largest) for name, t in theirs.items()]
    return max(math.inf if math.isnan(error) else error for error in errors)


def _scalar(found: float, expected: float) -> float:
    return abs(found - expected) / abs(expected)


def _tensor(found: torch.Tensor, expected: torch.Tensor, largest: float) -> float:
    error = float((found.double() - expected.double()).abs().max())
    return error / (float(expected.double().abs().max()) + 1e-3 * largest)


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    output = model(**batch)
    loss = getattr(output, "loss", output)
    assert isinstance(loss, torch.Tensor)
    return loss


def _optimizer(plan: Plan, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    told = plan.settings
    if told.optimizer == "sgd":
        return torch.optim.SGD(parameters, told.learning_rate, told.momentum, weight_decay=told.weight_decay)
    return torch.optim.AdamW(parameters, told.learning_rate, told.betas, told.epsilon, told.weight_decay)


@contextmanager
def _dropping(plan: Plan, step: int) -> Iterator[None]:
    """torch's dropout and attention with the masks of this step."""
    keys, one = row_keys(plan.seed, step, 0, plan.rows), row_keys(plan.seed, step, NO_ROW, 1)
    numbers = iter(range(10**6))

    def dropped(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not p:
            return values
        own = keys if values.shape[0] % plan.rows == 0 else one
        return values * kept(values.shape, p, next(numbers), own) / (1.0 - p)

    def attended(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: object = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **named: object,
    ) -> torch.Tensor:
        if not dropout_p:
            return attention(query, key, value, attn_mask, dropout_p, is_causal, **named)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if isinstance(attn_mask, torch.Tensor):
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        if is_causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        return dropped(scores.softmax(-1), dropout_p) @ value

    attention: Callable[..., torch.Tensor] = functional.scaled_dot_product_attention
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(functional, "dropout", dropped))
        stack.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", attended))
        yield


@contextmanager
def _drawing(plan: Plan, step: int) -> Iterator[None]:
    """torch's noise, uniform numbers without rows and gates with the numbers of this step."""
    keys, one = row_keys(plan.seed, step, 0, plan.rows), row_keys(plan.seed, step, NO_ROW, 1)
    mode = PassContext(rows=plan.rows, global_rows=plan.rows, training=True, keys=keys, batch_key=one)
    calls, aten = iter(range(FIRST_DRAW, FIRST_DRAW + 10**6)), torch.ops.aten

    def noise(like: torch.Tensor) -> torch.Tensor:
        return draw(aten.randn_like.default, next(calls), True, like, None, None, None, None, None, mode=mode)

    def uniform(size: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
        return draw(aten.rand.default, next(calls), False, size, dtype, None, None, None, mode=mode)

    def gates(share: torch.Tensor) -> torch.Tensor:
        return draw(aten.bernoulli.default, next(calls), True, share, None, mode=mode)

    with ExitStack() as stack:
        for name, stand_in in (("randn_like", noise), ("rand", uniform), ("bernoulli", gates)):
            stack.enter_context(mock.patch.object(torch, name, stand_in))
        yield
