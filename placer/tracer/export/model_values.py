"""The values that a model has outside of its parameters and buffers.

They are attributes of its modules, of their classes and of the files that these stand in, what is in lists, dicts and
plain objects there, and what hooks and replaced forwards hold.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import CellType, FunctionType, ModuleType

import torch
from torch import nn

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


def _places(model: nn.Module) -> Iterator[tuple[str, object]]:
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        yield from ((f"{prefix}{name}", getattr(module, name)) for name in attributes(module))
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            yield f"a hook of {path or 'the model'}", hook
    own = {type(module): None for module in model.modules() if is_own_module(type(module).__module__)}
    for kind in own:
        yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items() if _is_plain(value))
    for file in dict.fromkeys(kind.__module__ for kind in own):
        yield from ((f"{file}.{name}", value) for name, value in vars(sys.modules[file]).items() if _is_plain(value))


def attributes(module: nn.Module) -> list[str]:
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
