"""How far rounding alone can move what a step gives: the same step on one device, computed in other ways.

exact      the step in float64 from the same weights, where the model can
own        the step in its own type
shaken     the same with every weight moved by a unit of its last place, at random
reversed   the same with the rows of the batch in reverse, where float64 says that their order is nothing to the model

rounding of a quantity = the largest distance of any of them from the exact one (from the own one without it)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from placer.runtime.verify.eager.run import Batch, EagerRun

SHAKES = 3
# A sum of float64 in another order differs by less.
_SAME = 1e-9

Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What a step should give, and how far rounding moves each of it (`noise`, by name)."""

    expected: Values
    noise: dict[str, float]


def values_of(run: EagerRun, batch: Batch) -> Values:
    """The loss, the gradients and the buffers of a step, by name; weights stay as they are."""
    loss = torch.tensor(run.backward(batch), dtype=torch.float64)
    buffers = {name: tensor.detach().cpu().clone() for name, tensor in run.model.named_buffers()}
    gradients = {f"gradient {name}": gradient for name, gradient in run.gradients().items()}
    return {"loss": loss, "norm": _norm(gradients), **gradients, **{f"buffer {n}": b for n, b in buffers.items()}}


def evaluation_of(run: EagerRun, batch: Batch) -> Values:
    """The loss in evaluation."""
    return {"evaluation": torch.tensor(run.evaluate(batch), dtype=torch.float64)}


def spread(
    run: EagerRun, batch: Batch, exact: EagerRun | None, unit: float, compute: Callable[[EagerRun, Batch], Values]
) -> Spread:
    """That of `compute`; `run` and `exact` are left as they were. unit: of the last place, relative to a number."""
    with run.undone():
        own = compute(run, batch)
    expected = own if exact is None else _exactly(exact, run, batch, compute)
    noise = {name: _distance(own[name], expected[name]) for name in expected}
    for other in _otherwise(run, batch, exact, unit, compute, expected):
        for name, value in expected.items():
            if name in other:
                noise[name] = max(noise[name], _distance(other[name], value))
    return Spread(expected=expected, noise=noise)


def _exactly(
    exact: EagerRun, run: EagerRun, batch: Batch, compute: Callable[[EagerRun, Batch], Values], flip: bool = False
) -> Values:
    exact.take(run.state())
    exact.steps = run.steps
    wide = {name: t.double() if t.is_floating_point() else t for name, t in batch.items()}
    with exact.undone():
        return compute(exact, _reversed(wide) if flip else wide)


def _otherwise(
    run: EagerRun, batch: Batch, exact: EagerRun | None, unit: float, compute: Callable[[EagerRun, Batch], Values],
    expected: Values,
) -> Iterator[Values]:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for _ in range(SHAKES):
        with run.undone():
            _shake(run, unit, generator)
            yield compute(run, batch)
    if exact is not None and not run.keyed:
        turned = _exactly(exact, run, batch, compute, flip=True)
        if all(_distance(turned[name], value) <= _SAME * _size(value) for name, value in expected.items()):
            with run.undone():
                yield compute(run, _reversed(batch))


@torch.no_grad()
def _shake(run: EagerRun, unit: float, generator: torch.Generator) -> None:
    for parameter in run.model.parameters():
        if parameter.is_floating_point():
            moves = torch.randint(-1, 2, parameter.shape, generator=generator).to(parameter.device)
            parameter.mul_(1.0 + unit * moves.to(parameter.dtype))


def _reversed(batch: Batch) -> dict[str, torch.Tensor]:
    rows = max((tensor.shape[0] for tensor in batch.values() if tensor.dim()), default=0)
    return {name: t.flip(0) if t.dim() and t.shape[0] == rows else t for name, t in batch.items()}


def _norm(gradients: Values) -> torch.Tensor:
    """As clipping takes it: in the type of the gradients, whose sums of millions of squares round too; float32 at
    least."""
    wide = [gradient.float() if gradient.element_size() < 4 else gradient for gradient in gradients.values()]
    return nn.utils.get_total_norm(wide).double() if wide else torch.zeros((), dtype=torch.float64)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0


def _size(value: torch.Tensor) -> float:
    return float(value.double().abs().max()) if value.numel() else 0.0
