"""The judge: what a plain PyTorch loop makes of a model and some batches. Nothing of placer is in it.

Every step takes the whole batch at once on one device: loss, zero_grad, backward, clip_grad_norm_ where the settings
clip, step of torch.optim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What training came to: the loss and the gradients of each step, the state before the first and after the last.

    gradients are those before clipping; a parameter without one is not there. evaluated: the loss of the last batch in
    evaluation, afterwards; None where a run refuses to give it, or the model has none there.
    """

    losses: tuple[float, ...]
    gradients: tuple[dict[str, Tensor], ...]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    evaluated: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The optimizer in PyTorch's own words. clip: the largest norm, None without. autocast: products in bfloat16."""

    name: str
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    momentum: float
    clip: float | None
    autocast: bool = False

    def optimizer(self, trained: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        if self.name == "sgd":
            return torch.optim.SGD(
                trained, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
            )
        return torch.optim.AdamW(
            trained, lr=self.learning_rate, betas=self.betas, eps=self.epsilon, weight_decay=self.weight_decay
        )


def trained(
    build: Callable[[], nn.Module], batches: Sequence[Mapping[str, Tensor]], loss: Callable[..., Tensor] | None,
    rule: Rule, dtype: torch.dtype, seed: int = 0, nudged: int = 0,
) -> Numbers:  # fmt: skip
    """The numbers of a step on each batch.

    Weights of 16 bits are rounded from float32 ones that the optimizer updates. nudged: where not 0, a seed by which
    weights start off by one in their last place.
    """
    torch.manual_seed(seed)
    model = _cast(build(), dtype).train()
    if nudged:
        _nudge(model, nudged)
    before = _state(model)
    masters = {one: one.detach().float() if dtype.itemsize == 2 else one for one in model.parameters()}
    optimizer = rule.optimizer([master for one, master in masters.items() if one.requires_grad])
    losses, gradients = [], []
    for batch in batches:
        given = {name: one.to(dtype) if one.is_floating_point() else one for name, one in batch.items()}
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if rule.autocast else nullcontext():
            found = loss_of(model(**_taken(model, given)), given, loss)
        found.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        losses.append(float(found.detach()))
        gradients.append(_gradients(model))
        _update(masters, optimizer, rule.clip)
    after = _state(model)
    return Numbers(
        losses=tuple(losses), gradients=tuple(gradients), before=before, after=after,
        evaluated=_evaluated(model, given, loss, rule),
    )  # fmt: skip


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """As `to`, which would cut off imaginary parts."""
    complexes = torch.complex128 if dtype is torch.float64 else torch.complex64

    def moved(one: torch.Tensor) -> torch.Tensor:
        return one.to(complexes if one.is_complex() else dtype if one.is_floating_point() else one.dtype)

    return model._apply(moved)  # type: ignore[no-untyped-call]


def _evaluated(
    model: nn.Module, batch: Mapping[str, Tensor], loss: Callable[..., Tensor] | None, rule: Rule
) -> float | None:
    """The loss of a batch in evaluation; None where the model does not get that far."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16) if rule.autocast else nullcontext():
        try:
            return float(loss_of(model.eval()(**_taken(model, batch)), batch, loss))
        except Exception:
            return None


def adds_up(
    build: Callable[[], nn.Module], batch: Mapping[str, Tensor], loss: Callable[..., Tensor] | None,
    pieces: Sequence[int], seed: int = 0,
) -> bool:  # fmt: skip
    """Whether loss and gradients of the whole batch are the means of those of its pieces, weighted by their rows, and
    the state is left the same: then nothing is in the way of dividing it."""
    rows = sum(pieces)
    try:
        whole = _one_backward(build, [dict(batch)], [1.0], loss, seed)
        starts = [sum(pieces[:index]) for index in range(len(pieces))]
        cut = [
            {name: one[start : start + size] if one.shape[:1] == (rows,) else one for name, one in batch.items()}
            for start, size in zip(starts, pieces, strict=True)
        ]
        parts = _one_backward(build, cut, [size / rows for size in pieces], loss, seed)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return whole.keys() == parts.keys() and all(
        torch.allclose(one.double(), parts[name].double(), rtol=1e-7, atol=1e-10) for name, one in whole.items()
    )


def _one_backward(
    build: Callable[[], nn.Module], batches: Sequence[Mapping[str, Tensor]], weights: Sequence[float],
    loss: Callable[..., Tensor] | None, seed: int,
) -> dict[str, Tensor]:  # fmt: skip
    """The weighted sums of the batches' losses and gradients, and buffers and parameters afterwards."""
    torch.manual_seed(seed)
    model = _cast(build(), torch.float64).train()
    total = torch.zeros((), dtype=torch.float64)
    for batch, weight in zip(batches, weights, strict=True):
        found = weight * loss_of(model(**_taken(model, batch)), batch, loss)
        found.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        total += found.detach().reshape(())
    gradients = {f"gradient of {name}": one for name, one in _gradients(model).items()}
    return {"loss": total, **gradients, **dict(model.named_buffers()), **dict(model.named_parameters())}


def loss_of(output: Any, batch: Mapping[str, Tensor], loss: Callable[..., Tensor] | None) -> Tensor:
    """The one number to train on: of the loss function, or the output's own."""
    if loss is not None:
        return loss(output, batch)
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output["loss"]
    return output.loss if hasattr(output, "loss") else output[0]


def _taken(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs that forward takes; the others are for the loss."""
    names = inspect.signature(model.forward).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in names.values()):
        return dict(batch)
    return {name: one for name, one in batch.items() if name in names}


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in model.state_dict().items() if isinstance(one, Tensor)}


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """Under every name that a parameter has."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: one.grad.to_dense().clone() for name, one in named if one.grad is not None}


def _update(masters: Mapping[nn.Parameter, Tensor], optimizer: torch.optim.Optimizer, clip: float | None) -> None:
    """Clip, step, and round what was updated into the weights."""
    for weight, master in masters.items():
        if master is not weight:
            master.grad = None if weight.grad is None else weight.grad.float()
    if clip is not None:
        nn.utils.clip_grad_norm_(masters.values(), clip)
    optimizer.step()
    with torch.no_grad():
        for weight, master in masters.items():
            if master is not weight:
                weight.copy_(master)


def _nudge(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            sign = torch.randint(-1, 2, one.shape, generator=generator)
            one.mul_((1 + sign * torch.finfo(one.dtype).eps).to(one.dtype))
