"""What a model keeps from one forward to the next outside of its parameters and buffers, as the runs for its exports
show it: numbers that each run counts up, lists that grow, tensors that each run reads and replaces.

An export knows what such a value was in one run. Looked at are the attributes of modules, of their classes and of the
files that these stand in, what is in lists, dicts and plain objects there, and what hooks and replaced forwards hold.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import CellType, FunctionType, ModuleType

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.io.usercode import is_own_module

_OWN = frozenset(vars(nn.Module())) | {"_flat_weights"}  # the parameters of recurrent modules once more
# Of a long list the first, and of nested ones as many levels.
_MOST, _DEEPEST = 100, 4

_CONTAINERS = (list, tuple, dict, set, deque)


@dataclass(slots=True)
class Values:
    """Numbers and tensors by where they are kept, and lists and the like with their sizes; a dict is mostly a cache."""

    numbers: dict[str, int | float] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    lists: dict[str, list[object] | set[object] | deque[object]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    dicts: dict[str, dict[object, object]] = field(default_factory=dict)

    def grown(self, after: Values) -> dict[str, tuple[float, float]]:
        """What changed until `after`: numbers, and the sizes of lists that are still the same lists."""
        found: dict[str, tuple[float, float]] = {
            name: (self.numbers[name], value)
            for name, value in after.numbers.items()
            if value != self.numbers.get(name, value)
        }
        for name, value in after.lists.items():
            if self.lists.get(name) is value and self.sizes[name] != after.sizes[name]:
                found[f"len({name})"] = (self.sizes[name], after.sizes[name])
        return found


def values_of(model: nn.Module) -> Values:
    """All that is kept now."""
    found, seen = Values(), set[int]()
    for name, value in _places(model):
        _gather(name, value, found, seen, 0)
    return found


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
            for name in _attributes(module):
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


def _places(model: nn.Module) -> Iterator[tuple[str, object]]:
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        yield from ((f"{prefix}{name}", getattr(module, name)) for name in _attributes(module))
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            yield f"a hook of {path or 'the model'}", hook
    own = {type(module): None for module in model.modules() if is_own_module(type(module).__module__)}
    for kind in own:
        yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items() if _is_plain(value))
    for file in dict.fromkeys(kind.__module__ for kind in own):
        yield from ((f"{file}.{name}", value) for name, value in vars(sys.modules[file]).items() if _is_plain(value))


def _attributes(module: nn.Module) -> list[str]:
    """Its own, and the numbers that it has of its class until it changes them."""
    kind = type(module)
    known = vars(kind).items() if is_own_module(kind.__module__) else ()
    return [
        *(vars(module).keys() - _OWN),
        *(k for k, v in known if isinstance(v, int | float) and k not in vars(module)),
    ]


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, torch.Tensor, *_CONTAINERS))


def _gather(name: str, value: object, found: Values, seen: set[int], depth: int) -> None:
    if isinstance(value, int | float):
        found.numbers[name] = value
    elif isinstance(value, torch.Tensor):
        found.tensors[name] = value
    elif depth < _DEEPEST and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, dict):
            found.dicts[name] = dict(value)
        if isinstance(value, list | set | deque):
            found.lists[name], found.sizes[name] = value, len(value)
        for inner, one in islice(_inside(name, value), _MOST):
            _gather(inner, one, found, seen, depth + 1)


def _inside(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        return ((f"{name}[{key!r}]", one) for key, one in list(value.items()))
    if isinstance(value, _CONTAINERS):
        return ((f"{name}[{place}]", one) for place, one in enumerate(list(value)))
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        return ((f"{name}, its {free}", cell.cell_contents) for free, cell in cells if _is_filled(cell))
    if isinstance(value, nn.Module | type | ModuleType) or type(value).__module__.partition(".")[0] == "placer":
        return iter(())
    return ((f"{name}.{attribute}", one) for attribute, one in list(getattr(value, "__dict__", {}).items()))


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
