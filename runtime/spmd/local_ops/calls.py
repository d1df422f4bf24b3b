"""What a rank's op is run with: the pieces, the op to call, and the ranks it may talk to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from placer.errors import UsageError
from placer.rules.layouts import LocalOp
from placer.runtime.spmd.axis import Axis

Function = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A local op and its arguments: tensors are the rank's pieces, the rest is as the local op says."""

    local: LocalOp
    function: Function
    args: tuple[object, ...]
    kwargs: dict[str, object] = field(default_factory=dict)
    axis: Axis

    def tensor(self, position: int) -> torch.Tensor:
        """The tensor argument at `position`."""
        found = self.args[position]
        if not isinstance(found, torch.Tensor):
            raise UsageError(f"argument {position} of {self.local.call.target} is {found!r}, not a tensor")
        return found

    def optional(self, position: int, name: str) -> torch.Tensor | None:
        """The tensor at `position` or given by `name`, None where there is none."""
        found = self.option(position, name, None)
        return found if isinstance(found, torch.Tensor) else None

    def option(self, position: int, name: str, default: object) -> object:
        """The argument at `position` or given by `name`, else the default."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def number(self, position: int, name: str, default: float) -> float:
        """An argument that is a number."""
        found = self.option(position, name, default)
        return found if isinstance(found, int | float) else default

    def place(self, name: str) -> int:
        """Where the rank stands, as its local op says."""
        return self.local.number(name)

    def replaced(self, position: int, name: str, value: object) -> Given:
        """The same with one argument replaced, wherever it stands."""
        if position < len(self.args):
            return replace(self, args=(*self.args[:position], value, *self.args[position + 1 :]))
        return replace(self, kwargs={**self.kwargs, name: value})

    def called(self) -> torch.Tensor:
        """What the op gives."""
        made = self.function(*self.args, **self.kwargs)
        if not isinstance(made, torch.Tensor):
            raise UsageError(f"{self.local.call.target} gave {type(made).__name__}, not a tensor")
        return made
