"""What a model keeps from one forward to the next, as the runs for its exports show it.

Numbers that each run counts up, lists that grow, tensors that each run reads and replaces: an export knows what such a
value was in one run.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.tracer.export.model_values import Values, attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run on so many rows: by how much each number changed; True for what is true or false."""

    rows: int
    changes: dict[str, float]


@dataclass(slots=True)
class Kept:
    """What became of the values in the runs so far.

    replaced: tensors that a run found, read or not, and left others in place of. left: attributes that were no tensors
    before a run, and with which one; entries: the same of dicts. numbers, lists: what the last run left.
    """

    runs: list[_Run] = field(default_factory=list)
    replaced: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    left: dict[str, torch.Tensor] = field(default_factory=dict)
    entries: dict[str, dict[object, torch.Tensor]] = field(default_factory=dict)
    numbers: dict[str, int | float] = field(default_factory=dict)
    lists: dict[str, list[object]] = field(default_factory=dict)

    def add(self, before: Values, after: Values, rows: int) -> None:
        """Note a run. Raises UncapturableError for a number that two runs changed alike."""
        grown = before.grown(after)
        changes = {
            name: True if isinstance(now, bool) else float(now - earlier) for name, (earlier, now) in grown.items()
        }
        for name, old in before.tensors.items():
            if after.tensors.get(name) is not old:
                self.replaced[id(old)] = (name, old)
        self.left |= {name: new for name, new in after.tensors.items() if name not in before.tensors}
        for name, held in after.dicts.items():
            earlier_keys = before.dicts.get(name, {}).keys()
            self.entries.setdefault(name, {}).update(
                {key: one for key, one in held.items() if key not in earlier_keys and isinstance(one, torch.Tensor)}
            )
        for name in changes.keys() & (self.runs[-1].changes.keys() if self.runs else ()):
            earlier = self.runs[-1].changes[name]
            if changes[name] in (earlier, earlier / self.runs[-1].rows * rows):
                raise UncapturableError(_counted(name, *grown[name]))
        self.runs.append(_Run(rows=rows, changes=changes))
        self.numbers |= {name: now for name, (_, now) in grown.items() if name in after.numbers}
        self.lists |= {name: list(value) for name, value in after.lists.items()}

    def carry_over(self, model: nn.Module) -> None:
        """Give attributes the numbers and lists that the last run left: torch.export puts back what it found."""
        for path, module in model.named_modules():
            prefix = f"{path}." if path else ""
            for name in attributes(module):
                kept, value = f"{prefix}{name}", getattr(module, name)
                if kept in self.numbers:
                    setattr(module, name, self.numbers[kept])
                if isinstance(value, list | deque) and kept in self.lists:
                    value.clear()
                    value.extend(self.lists[kept])

    @contextlib.contextmanager
    def as_left(self, model: nn.Module, device: str | torch.device) -> Iterator[bool]:
        """In the body attributes and dicts hold tensors like those that runs left; whether there are any."""

        def like(tensor: torch.Tensor) -> torch.Tensor:
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype, device=device)

        changed: list[Callable[[], object]] = []
        for path, module in model.named_modules():
            for name, value in list(vars(module).items()):
                kept = f"{path}.{name}".lstrip(".")
                if kept in self.left and not isinstance(value, torch.Tensor):
                    changed.append(partial(setattr, module, name, value))
                    setattr(module, name, like(self.left[kept]))
                elif isinstance(value, dict) and self.entries.get(kept):
                    changed += [partial(value.pop, key, None) for key in self.entries[kept]]
                    value.update({key: like(tensor) for key, tensor in self.entries[kept].items()})
        try:
            yield bool(changed)
        finally:
            for undo in changed:
                undo()

    def require_unread(self, tensor: torch.Tensor) -> None:
        """Raise UncapturableError if a graph reads `tensor` and a run has put another in its place."""
        if id(tensor) in self.replaced:
            raise UncapturableError(
                f"forward reads and replaces the tensor {self.replaced[id(tensor)][0]}, which is no buffer: an export "
                "knows one of its values; make it a buffer (register_buffer)"
            )


def _counted(name: str, before: float, now: float) -> str:
    return (
        f"forward counts in {name}, a plain number, from {before} to {now}: an export runs forward once and knows one "
        "of its numbers; keep it in a buffer, and let no branch depend on it"
    )
