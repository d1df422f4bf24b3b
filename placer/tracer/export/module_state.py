"""What a module keeps from one forward to the next beside its parameters, and an export would lose.

Buffers that forward assigns anew (`self.count = self.count + 1`) are written in place instead, which an export shows.
Plain numbers that forward counts up are refused, and so are lists that grow and tensors that are no buffers, where they
are read and replaced: an export keeps what they were in the first run.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from placer.errors import UncapturableError

_Numbers = dict[str, dict[str, int | float]]
_COUNTED = (list, dict, set, deque)


@dataclass(slots=True)
class Kept:
    """What the runs of a model for its exports have shown of what it keeps.

    replaced: the names of tensors that are no buffers and that forward assigned anew. grown: by how much lists and the
    like have grown in each run.
    """

    replaced: set[str] = field(default_factory=set)
    grown: dict[str, list[int]] = field(default_factory=dict)

    def require_unread(self, name: str) -> None:
        """Raise UncapturableError if the tensor `name`, which a graph reads, is another one in the next step."""
        if name in self.replaced:
            raise UncapturableError(
                f"forward reads and replaces the tensor {name}, which is no buffer: an export knows one of its values; "
                "make it a buffer (register_buffer)"
            )


@contextlib.contextmanager
def state_written(model: nn.Module, kept: Kept) -> Iterator[None]:
    """In the body `model` runs. Raises UncapturableError for state that neither can be written nor stays."""
    buffers = [(path, module, dict(module._buffers)) for path, module in model.named_modules()]
    tensors = [(path, module, _tensors(module)) for path, module in model.named_modules()]
    numbers, sizes = _numbers(model), _sizes(model)
    yield
    for path, module, before in buffers:
        for name, old in before.items():
            if old is not None and module._buffers.get(name) is not old:
                module._buffers[name] = _written(f"{path}.{name}".lstrip("."), old, module._buffers.get(name))
    for path, module, held in tensors:
        now = _tensors(module)
        kept.replaced |= {f"{path}.{name}".lstrip(".") for name, old in held.items() if now.get(name) is not old}
    _require_uncounted(model, numbers)
    _require_no_growth(sizes, _sizes(model), kept)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _sizes(model: nn.Module) -> dict[str, int]:
    return {
        f"{path}.{name}".lstrip("."): len(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, _COUNTED) and not name.startswith("_")
    }


def _require_no_growth(before: dict[str, int], now: dict[str, int], kept: Kept) -> None:
    """What grows by as much in each run of two grows in every step; a cache is filled in the first."""
    for name, size in now.items():
        growth = kept.grown.setdefault(name, [])
        growth.append(size - before.get(name, size))
        if len(growth) > 1 and growth[-1] == growth[-2] > 0:
            raise UncapturableError(
                f"forward adds to {name} in every step, and an export knows it as the first left it; keep it outside "
                "of the model, or what is read of it in a buffer"
            )


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
