"""What a module keeps from one forward to the next beside its parameters, and an export would lose.

Buffers that forward assigns anew (`self.count = self.count + 1`) are written in place instead, which an export shows.
Plain numbers that forward counts up are refused: an export keeps what they were in the first run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from placer.errors import UncapturableError

_Numbers = dict[str, dict[str, int | float]]


@contextlib.contextmanager
def state_written(model: nn.Module) -> Iterator[None]:
    """In the body `model` runs. Raises UncapturableError for state that neither can be written nor stays."""
    buffers = [(path, module, dict(module._buffers)) for path, module in model.named_modules()]
    numbers = _numbers(model)
    yield
    for path, module, before in buffers:
        for name, old in before.items():
            if old is not None and module._buffers.get(name) is not old:
                module._buffers[name] = _written(f"{path}.{name}".lstrip("."), old, module._buffers.get(name))
    _require_uncounted(model, numbers)


def _written(name: str, old: torch.Tensor, new: torch.Tensor | None) -> torch.Tensor:
    """`old`, the buffer, with what was assigned to its name."""
    if new is None or (new.shape, new.dtype) != (old.shape, old.dtype):
        raise UncapturableError(
            f"forward replaces the buffer {name} by one of another type or size; write into it with copy_ or keep what "
            "changes size outside of forward"
        )
    return old.copy_(new.detach())


def _numbers(model: nn.Module) -> _Numbers:
    return {path: {k: v for k, v in vars(m).items() if type(v) in (int, float)} for path, m in model.named_modules()}


def _require_uncounted(model: nn.Module, before: _Numbers) -> None:
    for path, now in _numbers(model).items():
        counted = next((k for k, v in now.items() if abs(v - before.get(path, {}).get(k, v)) == 1), None)
        if counted is not None:
            raise UncapturableError(
                f"forward counts in {f'{path}.{counted}'.lstrip('.')}, a plain number, from {before[path][counted]} to "
                f"{now[counted]}: an export runs forward once and knows one of its numbers; keep it in a buffer, "
                "and let no branch depend on it"
            )
