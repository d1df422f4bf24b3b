"""Where a rank's weights come from, a part of one tensor at a time: an initialiser done again, or a module in memory.

A `Box` says which part of a tensor a rank holds: the ranges it has of some of the dims, all of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from placer.runtime.weights.deferred_init import DeferredInit

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part of a tensor of `shape`: `cuts` are (dim, its ranges one after another); other dims are whole."""

    shape: tuple[int, ...]
    cuts: tuple[tuple[int, Ranges], ...] = ()

    @property
    def taken(self) -> tuple[int, ...]:
        """The shape of the part."""
        sizes = dict(enumerate(self.shape)) | {dim: sum(b - a for a, b in found) for dim, found in self.cuts}
        return tuple(sizes[dim] for dim in range(len(self.shape)))

    def rows(self, start: int, end: int) -> Box:
        """The part of this part that is `start` to `end` of its dim 0."""
        ranges = dict(self.cuts)
        ranges[0] = between(ranges.get(0, ((0, self.shape[0]),)), start, end)
        return Box(shape=self.shape, cuts=tuple(sorted(ranges.items())))

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """The part of a whole tensor; itself where that is all of it, otherwise memory of its own."""
        for dim, ranges in self.cuts:
            found = [whole.narrow(dim, start, end - start) for start, end in ranges]
            whole = found[0].clone(memory_format=torch.contiguous_format) if len(found) == 1 else torch.cat(found, dim)
        return whole


class Source(Protocol):
    """Weights by the model's own names."""

    def read(self, name: str, box: Box) -> torch.Tensor:
        """A part of a parameter or buffer, on any device and in any precision."""
        ...


class Replayed:
    """The initial weights of a model built under `deferred`, whose tensors are `named`."""

    def __init__(self, deferred: DeferredInit, named: Mapping[str, torch.Tensor]) -> None:
        self._deferred, self._named = deferred, named

    def read(self, name: str, box: Box) -> torch.Tensor:
        """Made whole, then cut; no other tensor of the model is made."""
        return box.of(self._deferred.made(self._named[name]))


class ModelInMemory:
    """The tensors of a model that is in memory."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named = named

    def read(self, name: str, box: Box) -> torch.Tensor:
        """The tensor itself where all of it is asked for."""
        return box.of(self._named[name])


def between(ranges: Ranges, start: int, end: int) -> Ranges:
    """Of ranges put one after another the part from `start` to `end`."""
    found, before = [], 0
    for first, last in ranges:
        low, high = max(first, first + start - before), min(last, first + end - before)
        if low < high:
            found.append((low, high))
        before += last - first
    return tuple(found) or ((0, 0),)
