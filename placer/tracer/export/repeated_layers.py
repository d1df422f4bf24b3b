"""Layers of a module that are alike: runs of identical copies.

Layers are identical when class tree, parameter shapes and plain attributes agree (indices such as layer_idx aside); a
run may repeat a cycle of up to `LONGEST_CYCLE` layers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

KEPT = 3  # copies of a run that are exported
LONGEST_CYCLE = 8  # Gemma 3 has a layer of global attention after five of local attention
_INDEX = re.compile(r"idx|index|layer_id|layer_number|block_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """In the list at `path`, `count` copies of `period` children from `start` on are alike."""

    path: str
    start: int
    period: int
    count: int

    @property
    def saved(self) -> int:
        """How many children need no export of their own."""
        return (self.count - KEPT) * self.period

    def children(self, copy: int) -> range:
        """Indices of the children of one copy."""
        first = self.start + copy * self.period
        return range(first, first + self.period)


def repeats(model: nn.Module) -> tuple[Repeat, ...]:
    """The outermost runs of at least four identical copies."""
    shared = _shared_parameters(model)
    return tuple(_repeats_within(model, "", shared))


def _repeats_within(module: nn.Module, path: str, shared: set[int]) -> Iterator[Repeat]:
    children = dict(module.named_children())
    run = _run(path, children, shared) if isinstance(module, (nn.ModuleList, nn.Sequential)) else None
    if run is not None:
        yield run
        return
    for name, child in children.items():
        yield from _repeats_within(child, f"{path}.{name}" if path else name, shared)


def _run(path: str, children: dict[str, nn.Module], shared: set[int]) -> Repeat | None:
    if not path or list(children) != [str(index) for index in range(len(children))]:
        return None
    numbers: dict[Hashable, int] = {}
    keys = [
        None if _holds(child, shared) else numbers.setdefault(_structure(child), len(numbers))
        for child in children.values()
    ]
    found = [
        Repeat(path=path, start=start, period=period, count=count)
        for period in range(1, LONGEST_CYCLE + 1)
        for start in range(len(keys) - (KEPT + 1) * period + 1)
        if (count := _copies(keys, start, period)) > KEPT
    ]
    return max(found, key=lambda run: (run.saved, -run.period, -run.start), default=None)


def _copies(keys: list[int | None], start: int, period: int) -> int:
    """How many times the `period` keys from `start` on follow each other."""
    end = start + period
    while end < len(keys) and keys[end] is not None and keys[end] == keys[end - period]:
        end += 1
    return (end - start) // period


def _shared_parameters(model: nn.Module) -> set[int]:
    seen: set[int] = set()
    shared: set[int] = set()
    for _, parameter in model.named_parameters(remove_duplicate=False):
        (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def _holds(module: nn.Module, shared: set[int]) -> bool:
    return any(id(parameter) in shared for parameter in module.parameters())


def _structure(module: nn.Module) -> Hashable:
    return tuple(
        (name, type(part), _attributes(part), _tensors(part))
        for name, part in module.named_modules(remove_duplicate=False)
    )


def _tensors(module: nn.Module) -> Hashable:
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return tuple((name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in own)


def _attributes(module: nn.Module) -> Hashable:
    plain = (int, float, str, bool, torch.dtype, torch.device, type(None))
    found: list[tuple[str, object]] = []
    for name, value in sorted(vars(module).items()):
        if name == "_modules" or name == "_parameters" or name == "_buffers" or _INDEX.search(name):
            continue
        if isinstance(value, plain):
            found.append((name, value))
        elif isinstance(value, (tuple, list)) and all(isinstance(part, plain) for part in value):
            found.append((name, tuple(value)))
        elif not name.startswith("_") and not isinstance(value, (dict, set)):
            found.append((name, getattr(value, "__qualname__", type(value).__qualname__)))
    return tuple(found)
