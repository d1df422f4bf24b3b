"""What a module keeps from one forward to the next beside its parameters, and an export would lose.

Buffers that forward assigns anew (`self.count = self.count + 1`) are written in place instead, which an export shows.
What is kept otherwise is refused where each step would find it another (`kept_values`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.tracer.export.state.kept_values import Kept
from placer.tracer.export.state.model_values import values_of


@contextlib.contextmanager
def state_written(model: nn.Module, loss: object, kept: Kept, rows: int) -> Iterator[None]:
    """In the body `model`, and a loss beside it, run on so many rows. Raises UncapturableError for state that neither
    can be written nor stays."""
    buffers = [(path, module, dict(module._buffers)) for path, module in model.named_modules()]
    names = {name for name, _ in model.named_buffers()}
    trained = {name for name, _ in model.named_parameters()}
    parts, learning = _parts(model), _learning(model)
    kept.carry_over(model)
    before = values_of(model, loss)
    yield
    new = next((name for name, _ in model.named_buffers() if name not in names), None)
    if new is not None:
        raise UncapturableError(f"forward registers the buffer {new}; do so in __init__, where every rank finds it")
    made = next((name for name, _ in model.named_parameters() if name not in trained), None)
    if made is not None:
        raise UncapturableError(f"forward makes the parameter {made}; do so in __init__, where every rank finds it")
    other = next((name for name, part in _parts(model).items() if parts.get(name) is not part), None)
    if other is not None:
        raise UncapturableError(f"forward makes the module {other}; do so in __init__, where every rank finds it")
    _require_learning(model, learning)
    for path, module, held in buffers:
        for name, old in held.items():
            if old is not None and module._buffers.get(name) is not old:
                module._buffers[name] = _written(f"{path}.{name}".lstrip("."), old, module._buffers.get(name))
    kept.add(before, values_of(model, loss), rows)


def _learning(model: nn.Module) -> dict[str, bool]:
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def _require_learning(model: nn.Module, before: dict[str, bool]) -> None:
    """Raise UncapturableError where forward froze a parameter, or let one learn, and give that back."""
    other = [name for name, now in _learning(model).items() if now != before[name]]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(before[name])
    if other:
        raise UncapturableError(
            f"forward sets requires_grad of the parameter {other[0]}, which is {before[other[0]]} before the first "
            "step; freeze it, or let it learn, before the model is planned"
        )


def _parts(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that attributes hold, past the list of submodules."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, nn.Module)
    }


def _written(name: str, old: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    """`old`, the buffer, with what was assigned to its name."""
    if new is None or (new.shape, new.dtype) != (old.shape, old.dtype):
        raise UncapturableError(
            f"forward replaces the buffer {name} by one of another type or size; write into it with copy_ or keep what "
            "changes size outside of forward"
        )
    return old.copy_(new.detach())
