"""Tensors of which a rank holds a part, as torch.distributed.checkpoint saves and loads them: in place, not gathered.

`TensorChunks` is memory of this rank and the box of the whole that it is: several chunks where the box has several
ranges of a dim. The checkpoint holds whole tensors in chunks, so that any other layout can read its own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import product

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType

from placer.runtime.distributed.tensors import local_part
from placer.runtime.weights.rank_weights import Box, ChunkMap, Ranges


class TensorChunks:
    """`tensor` holds the part `box` of a whole tensor. `written`: whether a checkpoint gets it from here."""

    def __init__(self, tensor: torch.Tensor, box: Box, *, written: bool = True) -> None:
        self.tensor, self.box, self.written = tensor, box, written

    def size(self) -> torch.Size:
        """The size of the whole, which the checkpoint's must equal."""
        return torch.Size(self.box.shape)

    def on_host(self) -> TensorChunks:
        """A copy in host memory."""
        return TensorChunks(self.tensor.detach().to("cpu", copy=True), self.box, written=self.written)

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.tensor)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.size()),
            )
            for chunk, _ in (self._chunks() if self.written else ())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [chunk for chunk, _ in self._chunks()]

    def at(self, offset: torch.Size | None) -> torch.Tensor:
        """The memory of the chunk that begins there."""
        return next(view for chunk, view in self._chunks() if chunk.offsets == offset)

    def _chunks(self) -> Iterator[tuple[ChunkStorageMetadata, torch.Tensor]]:
        dims, cuts = len(self.box.shape), dict(self.box.cuts)
        placed = [_placed(cuts.get(dim, ((0, self.box.shape[dim]),))) for dim in range(dims)]
        for ranges in product(*placed):
            view = self.tensor.detach()
            for dim, (start, end, at) in enumerate(ranges):
                view = view.narrow(dim, at, end - start)
            if view.numel():
                offsets = torch.Size(start for start, _, _ in ranges)
                yield ChunkStorageMetadata(offsets=offsets, sizes=view.shape), view


class SavePlanner(DefaultSavePlanner):
    """Finds the chunks to be written."""

    def lookup_object(self, index: MetadataIndex) -> object:
        """What is written for `index`."""
        found = self.state_dict[index.fqn]
        return found.at(index.offset) if isinstance(found, TensorChunks) else super().lookup_object(index)


class LoadPlanner(DefaultLoadPlanner):
    """Finds the chunks to be read into."""

    def set_up_planner(
        self, state_dict: dict[str, object], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As torch does, which puts None for what it does not know (2.13: `_init_state_dict`)."""
        chunks = dict(_flat_chunks(state_dict, ()))
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.state_dict.update(chunks)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Something else than a tensor; torch's own planner would run what its pickle names (2.13)."""
        name = read_item.dest_index.fqn
        found = torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], found)
        else:
            self.state_dict[name] = found

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Where `index` is read into."""
        found = self.state_dict[index.fqn]
        return found.at(index.offset) if isinstance(found, TensorChunks) else super().lookup_tensor(index)


def as_saved(
    chunks: ChunkMap, name: str, held: torch.Tensor, like: torch.Tensor | None = None
) -> torch.Tensor | TensorChunks:
    """`held`, a tensor as large as what this rank holds of `name`, as checkpoints take it.

    like: what tells the rows of it (a sharded parameter) where `held` is their plain memory.
    """
    box = chunks.box(name, held if like is None else like)
    local = local_part(held).detach()
    written = name not in chunks.read
    return TensorChunks(local, box, written=written) if box.cuts or not written else local


def _flat_chunks(state: Mapping[str, object], path: tuple[str, ...]) -> Iterator[tuple[str, TensorChunks]]:
    """The chunks in nested dicts by their flat names."""
    for name, value in state.items():
        if isinstance(value, TensorChunks):
            yield ".".join((*path, name)), value
        elif isinstance(value, Mapping):
            yield from _flat_chunks(value, (*path, name))


def _placed(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Start and end of each range in the whole, and where it begins in what is held."""
    found, at = [], 0
    for start, end in ranges:
        found.append((start, end, at))
        at += end - start
    return found
