"""What a model keeps from one forward to the next, as the runs for its exports show it.

Plain values that each run changes, lists that grow, tensors that each run reads and replaces: an export knows what such
a value was in one run.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.tracer.export.state.left_values import LeftValues
from placer.tracer.export.state.model_values import Plain, Values, attributes
from placer.tracer.export.state.shared_memory import memory_of

_Copy = list[object] | dict[object, object]
# The attributes of modules that hold hooks: `_forward_hooks`, `_forward_pre_hooks_with_kwargs` and others.
_HOOKS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")


@dataclass(slots=True)
class Kept:
    """What became of the values in the runs so far.

    changes: what the last run changed; how many rows it had, and its mode. known, replaced: tensors that runs found,
    and those of them that they left others in place of, read or not. moved: the replaced, where the other lies on
    another device. left: what runs left where there was none before (`left_values`). plain, lists: what the last run
    left. again: modules that the last run found as before the first step: a cache is not there, nor what it is for.
    """

    changes: dict[str, Plain] = field(default_factory=dict)
    rows: int = 0
    training: bool = True
    known: dict[int, torch.Tensor] = field(default_factory=dict)
    replaced: dict[int, str] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    left: LeftValues = field(default_factory=LeftValues)
    plain: dict[str, Plain] = field(default_factory=dict)
    lists: dict[str, _Copy] = field(default_factory=dict)
    again: frozenset[str] = frozenset()

    def add(self, before: Values, after: Values, rows: int, training: bool) -> None:
        """Note a run in training or evaluation. Raises UncapturableError for a plain value that two runs changed,
        unless to a size that has so many of each row."""
        changed = before.changed(after)
        for name, (earlier, now) in changed.items():
            first = name.rpartition(".")[0] in self.again
            if name in self.changes and not first and not _grows_with_rows(self.changes[name], self.rows, now, rows):
                marks = isinstance(now, bool) and training != self.training
                raise UncapturableError(_switched(name, bool(now), training) if marks else _counted(name, earlier, now))
        self.known |= {id(tensor): tensor for tensor in before.tensors.values()}
        self.replaced |= {id(old): name for name, old in before.tensors.items() if after.tensors.get(name) is not old}
        self.moved |= {id(old) for name, old in before.tensors.items() if _elsewhere(old, after.tensors.get(name))}
        self.left.add(before, after)
        self.changes, self.rows = {name: now for name, (_, now) in changed.items()}, rows
        self.training = training
        self.plain |= {name: now for name, (_, now) in changed.items() if name in after.plain}
        self.lists |= {name: _copied(one) for name, one in after.lists.items() if isinstance(one, list | deque | dict)}

    def carry_over(self, model: nn.Module) -> None:
        """Give attributes the plain values and lists that the last run left: each export puts back what it found."""
        modules, self.again = dict(model.named_modules()), self.left.missing(model)
        for name, value in self.plain.items():
            path, _, attribute = name.rpartition(".")
            if path in modules and path not in self.again and attribute.isidentifier():
                setattr(modules[path], attribute, value)
        for path, module in modules.items():
            for attribute in attributes(module):
                place = f"{path}.{attribute}".lstrip(".")
                value, kept = getattr(module, attribute), self.lists.get(place)
                if kept is None or _holds(value, kept):
                    continue
                if place in self.left.places or any(map(_is_tensor, kept.values() if isinstance(kept, dict) else kept)):
                    continue  # tensors of an export that is over
                if isinstance(value, list | deque) and isinstance(kept, list):
                    value.clear()
                    value.extend(kept)
                elif isinstance(value, dict) and isinstance(kept, dict):
                    value.update(kept)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a run found `tensor`, or one in the same memory: an export reads a parameter of a module that is
        hidden in a list as a tensor of its own."""
        return any(memory_of(one) == memory_of(tensor) for one in self.known.values())

    def was_moved(self, tensor: torch.Tensor) -> bool:
        """Whether a run has put one of another device in the place of `tensor`: where the inputs lie on its own, the
        run may leave it."""
        return id(tensor) in self.moved

    def require_unread(self, tensor: torch.Tensor) -> None:
        """Raise UncapturableError if a graph reads `tensor` and a run has put another in its place."""
        if id(tensor) in self.replaced:
            raise UncapturableError(
                f"forward reads and replaces the tensor {self.replaced[id(tensor)]}, which is no buffer: an export "
                "knows one of its values; make it a buffer (register_buffer)"
            )


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """After the body the modules have the attributes that they had, and their lists and dicts what was in them.

    Where it fails they have the hooks that they had: those that forward puts on, and keeps a mark of, would come again.
    """
    before = [(module, dict(vars(module))) for module in model.modules()]
    inside = [
        (value, _copied(value))
        for _, held in before
        for name, value in held.items()
        if isinstance(value, list | deque | dict) and not name.startswith("_")
    ]
    hooks = [
        (value, dict(value))
        for _, held in before
        for name, value in held.items()
        if isinstance(value, dict) and name.endswith(_HOOKS)
    ]
    try:
        yield
    except BaseException:
        inside += hooks
        raise
    finally:
        for module, held in before:
            vars(module).clear()
            vars(module).update(held)
        for value, held_inside in inside:
            if _holds(value, held_inside):
                continue
            value.clear()
            if isinstance(value, dict) and isinstance(held_inside, dict):
                value.update(held_inside)
            elif isinstance(value, list | deque):
                value.extend(held_inside)


def _counted(name: str, earlier: Plain, now: Plain) -> str:
    return (
        f"forward counts in {name}, a plain value, from {earlier} to {now}: an export runs forward once and knows one "
        "of its values; keep it in a buffer, and let no branch depend on it"
    )


def _switched(name: str, now: bool, training: bool) -> str:
    """What is said of a mark of the mode that forward ran in last: RWKV's, by which it rescales weights when it is
    called in the other."""
    mode, other = ("training", "evaluation") if training else ("evaluation", "training")
    return (
        f"forward sets {name}, a plain value, to {now} in {mode} and to {not now} in {other}: what it does depends on "
        "the mode that it ran in before, which an export does not know; let it read self.training, and write no weights"
    )


def _grows_with_rows(earlier: Plain, earlier_rows: int, now: Plain, rows: int) -> bool:
    if isinstance(earlier, str | bool) or isinstance(now, str | bool):
        return False
    return earlier * rows == now * earlier_rows


def _holds(value: object, kept: _Copy) -> bool:
    """Whether a list or dict holds those very things. It is not written to then: it may be frozen (a configuration's),
    and say so by raising."""
    if isinstance(value, dict) and isinstance(kept, dict):
        return list(value) == list(kept) and all(value[key] is one for key, one in kept.items())
    if isinstance(value, list | deque) and isinstance(kept, list):
        return len(value) == len(kept) and all(one is other for one, other in zip(value, kept, strict=True))
    return False


def _elsewhere(old: torch.Tensor, new: torch.Tensor | None) -> bool:
    return new is not None and new.device != old.device


def _copied(value: list[object] | deque[object] | dict[object, object]) -> _Copy:
    return dict(value) if isinstance(value, dict) else list(value)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
