"""The values that a model has outside of its parameters and buffers.

They are attributes of its modules, whether these train, attributes of their classes and of the files that these stand
in, what is in lists, dicts and plain objects there, modules among them, and what hooks, replaced forwards and the loss
hold. Not looked at are iterators, arrays of numpy and objects with slots.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TypeVar

import torch
from torch import nn

from placer.errors import UncapturableError
from placer.io.usercode import is_own_module
from placer.tracer.lookups.readings import is_read

_OWN = frozenset(vars(nn.Module())) | {"_flat_weights"}  # the parameters of recurrent modules once more
# Of a long list the first, and of nested ones as many levels.
_MOST, DEEPEST = 100, 4

_CONTAINERS = (list, tuple, dict, set, deque)
_NONE = object()


Plain = int | float | str
_Held = TypeVar("_Held")


@dataclass(slots=True)
class Values:
    """Plain values and tensors by where they are kept, and lists, dicts and the like with their sizes; holders: what
    else stands in the places themselves."""

    plain: dict[str, Plain] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    lists: dict[str, Sized] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    holders: dict[str, object] = field(default_factory=dict)

    def changed(self, after: Values) -> dict[str, tuple[Plain, Plain]]:
        """What changed until `after`: plain values, and the sizes of lists that are still the same lists."""
        found: dict[str, tuple[Plain, Plain]] = {
            name: (self.plain.get(name, "nothing"), value)
            for name, value in after.plain.items()
            if value != self.plain.get(name, _NONE)
        }
        for name, value in after.lists.items():
            sizes = {self.sizes.get(name, -1), after.sizes[name]}
            if self.lists.get(name) is value and len(sizes) > 1 and -1 not in sizes:
                found[f"len({name})"] = (self.sizes[name], after.sizes[name])
        return found


def values_of(model: nn.Module, beside: object = None) -> Values:
    """All that a model, and a loss `beside` it, have now."""
    found, seen = Values(), {id(module) for module in model.modules()}
    for name, value in (*_places(model), *_places_of_loss(beside)):
        if not isinstance(value, Plain | torch.Tensor | nn.Module):
            found.holders[name] = value
        _gather(name, value, found, seen, 0)
    return found


def _places(model: nn.Module) -> Iterator[tuple[str, object]]:
    for path, module in model.named_modules():
        yield from _of_module(path, module)
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            yield f"a hook of {path or 'the model'}", hook
    kinds = {kind: None for module in model.modules() for kind in _own_kinds(module)}
    for kind in kinds:
        yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items() if _is_plain(value))
    for file in dict.fromkeys(kind.__module__ for kind in kinds):
        yield from _of_file(file)


def _of_module(path: str, module: nn.Module) -> Iterator[tuple[str, object]]:
    prefix = f"{path}." if path else ""
    yield from ((f"{prefix}{name}", getattr(module, name)) for name in attributes(module))
    yield f"{prefix}training", module.training


def _of_hidden(name: str, module: nn.Module) -> Iterator[tuple[str, object]]:
    """What a module has that is no part of the model, which keeps it in a list or the like."""
    for path, part in module.named_modules():
        yield from _of_module(f"{name}.{path}".rstrip("."), part)
    yield from ((f"{name}.{path}", tensor) for path, tensor in module.named_parameters())
    yield from ((f"{name}.{path}", tensor) for path, tensor in module.named_buffers())


def _places_of_loss(loss: object) -> Iterator[tuple[str, object]]:
    file = str(getattr(loss, "__module__", ""))
    if loss is not None and is_own_module(file):
        yield "the loss", loss
        yield from _of_file(file)


def _of_file(file: str) -> Iterator[tuple[str, object]]:
    held = vars(sys.modules[file]) if file in sys.modules else {}
    yield from ((f"{file}.{name}", value) for name, value in held.items() if _is_plain(value) and name[:2] != "__")


def _own_kinds(module: nn.Module) -> Iterator[type]:
    return (kind for kind in type(module).__mro__ if is_own_module(kind.__module__))


def attributes(module: nn.Module) -> list[str]:
    """Its own, and the plain values that it has of its classes until it changes them."""
    own = vars(module).keys()
    shared = {
        name: None
        for kind in _own_kinds(module)
        for name, value in vars(kind).items()
        if isinstance(value, Plain) and name not in own and name[:2] != "__"
    }
    return [*(name for name in own if name not in _OWN), *shared]


def of_kind(module: nn.Module, kind: type[_Held]) -> dict[str, _Held]:
    """What is of a kind among the attributes of a module and its submodules, past the lists of torch's own."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, own in module.named_modules()
        for name, value in vars(own).items()
        if isinstance(value, kind)
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str, torch.Tensor, *_CONTAINERS))


def _gather(name: str, value: object, found: Values, seen: set[int], depth: int) -> None:
    if is_read(value) or isinstance(value, torch.SymFloat | torch.SymInt | torch.SymBool):
        raise UncapturableError(
            f"forward keeps {name}, a number that it reads from a tensor (.item(), float()), which an export does not "
            "know; keep the tensor in a buffer, or read it outside of forward"
        )
    if isinstance(value, Plain):
        found.plain[name] = value
    elif isinstance(value, torch.Tensor):
        found.tensors[name] = value
    elif isinstance(value, nn.Module) and id(value) not in seen:
        seen.update(map(id, value.modules()))
        for inner, one in _of_hidden(name, value):
            _gather(inner, one, found, seen, depth + 1)
    elif depth < DEEPEST and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, list | set | deque | dict):
            found.lists[name] = value
            # A dict of tensors is a cache or a log: what is in it is looked at, not how much there is.
            cache = isinstance(value, dict) and any(isinstance(one, torch.Tensor) for one in value.values())
            found.sizes[name] = -1 if cache else len(value)
        for inner, one in islice(_inside(name, value), _MOST):
            _gather(inner, one, found, seen, depth + 1)


def _inside(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, type | ModuleType) or type(value).__module__.partition(".")[0] == "placer":
        return
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", one) for key, one in list(value.items()))
    elif isinstance(value, _CONTAINERS):
        yield from ((f"{name}[{place}]", one) for place, one in enumerate(list(iter(value))))
    elif isinstance(value, MethodType):
        yield f"{name} of", value.__self__
    else:
        if isinstance(value, FunctionType):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
            yield from ((f"{name}, its {free}", cell.cell_contents) for free, cell in cells if _is_filled(cell))
        yield from ((f"{name}.{one}", inner) for one, inner in list(getattr(value, "__dict__", {}).items()))


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
