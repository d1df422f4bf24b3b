"""Where a rank's weights come from, a part (`Box`) of one tensor at a time (`Source`), and what it takes of them: its
pieces of its stages, its rows of those, and nothing else (`RankWeights`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from placer.runtime.spmd import Pieces
from placer.runtime.stages.block_code import attribute
from placer.runtime.stages.stage import StageModule
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


class ChunkMap:
    """Which part of each of the model's tensors this rank holds. shapes: of the whole ones, by name.

    read: tied parameters that an earlier stage cuts in other places and writes; here they are read only.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], pieces: Pieces, read: Iterable[str] = ()) -> None:
        self._shapes, self._pieces, self.read = shapes, pieces, frozenset(read)

    def box(self, name: str, held: torch.Tensor | None = None) -> Box:
        """The part of `name` that this rank's devices hold, cut further to its own rows where `held` is sharded."""
        shape = self._shapes[name]
        box = Box(shape=shape, cuts=self._pieces.cuts(name, shape))
        return box.rows(*_rows(held)) if isinstance(held, DTensor) else box


class RankWeights:
    """Reads from `source` what a rank holds of `model` (its shapes, types and names), onto `device`."""

    def __init__(self, model: nn.Module, source: Source, chunks: ChunkMap, device: torch.device) -> None:
        self._model, self._source, self._chunks, self._device = model, source, chunks, device

    def piece(self, name: str) -> torch.Tensor:
        """This rank's piece of a parameter (as one) or of a buffer."""
        like = attribute(self._model, name)
        return self._kept(like, self._source.read(name, self._chunks.box(name)))

    def shape_of_piece(self, name: str) -> torch.Tensor:
        """The same without its values, on the meta device: for what is yet to be cut further; with them what has no
        dims, and buffers."""
        like = attribute(self._model, name)
        if not isinstance(like, nn.Parameter) or not like.dim():
            return self.piece(name)
        taken = self._chunks.box(name).taken
        return nn.Parameter(torch.empty(taken, dtype=like.dtype, device="meta"), requires_grad=like.requires_grad)

    def whole(self, name: str) -> torch.Tensor:
        """All of a parameter or buffer."""
        like = attribute(self._model, name)
        return self._kept(like, self._source.read(name, Box(shape=tuple(like.shape)))).detach()

    @torch.no_grad()
    def fill(self, stage: StageModule) -> None:
        """Give the sharded parameters of `stage` memory, and in it their rows."""
        stage._apply(self._with_memory)  # type: ignore[no-untyped-call]
        for name, parameter in stage.own_parameters().items():
            if isinstance(parameter, DTensor):
                parameter.to_local().copy_(self._source.read(name, self._chunks.box(name, parameter)))

    def _with_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=self._device) if tensor.is_meta else tensor

    def _kept(self, like: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        if (found.device, found.dtype) != (like.device, like.dtype):
            found = found.detach().to(device=like.device, dtype=like.dtype)
        if not isinstance(like, nn.Parameter) or isinstance(found, nn.Parameter):
            return found
        return nn.Parameter(found.detach(), requires_grad=like.requires_grad)


def between(ranges: Ranges, start: int, end: int) -> Ranges:
    """Of ranges put one after another the part from `start` to `end`."""
    found, before = [], 0
    for first, last in ranges:
        low, high = max(first, first + start - before), min(last, first + end - before)
        if low < high:
            found.append((low, high))
        before += last - first
    return tuple(found) or ((0, 0),)


def _rows(held: DTensor) -> tuple[int, int]:
    """The rows of dim 0 that FSDP2 leaves to this rank: pieces as of torch.chunk."""
    size, mesh = held.shape[0], held.device_mesh
    each = -(-size // mesh.size())
    start = min(size, mesh.get_local_rank() * each)
    return start, min(size, start + each)
