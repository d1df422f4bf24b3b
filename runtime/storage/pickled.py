"""The index of a checkpoint (`.metadata`), a pickle that torch writes, read as data: what it names is never called.

    pickle --unpickled with stand-ins--> Part ... --checked, field by field--> torch's Metadata

A stand-in keeps what it was given and does nothing. Any name but those that torch 2.13 writes there is refused.
Python's own unpickler is used, in Python, at a third of its speed: that in C takes memory
by numbers in the file (a place in its memo: 64 GiB).
"""

from __future__ import annotations

import io
import pickle
import struct
from math import prod
from pathlib import Path
from typing import TypeVar

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from placer.errors import UsageError

INDEX = ".metadata"
# torch's own limit of dims, and more elements than there are bytes anywhere.
MOST_DIMS = 64
MOST_ELEMENTS = 2**60
# What a broken pickle raises in Python's unpickler, which takes its structure for granted.
_BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, KeyError, IndexError, AttributeError, TypeError, RecursionError,
    OverflowError, MemoryError, AssertionError, struct.error,
)  # fmt: skip


class Part:
    """What stands for an object of the pickle: the arguments and the state it was to be made with."""

    def __new__(cls, *arguments: object) -> Part:
        """Keep the arguments."""
        made = super().__new__(cls)
        made.arguments, made.state = arguments, None
        return made

    arguments: tuple[object, ...]
    state: object

    def __setstate__(self, state: object) -> None:
        self.state = state

    def field(self, name: str) -> object:
        """A field of its state; None where there is none of that name."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class IndexPart(Part):
    """All of it."""


class TensorPart(Part):
    """A tensor of the checkpoint."""


class PropertiesPart(Part):
    """The type of a tensor."""


class BytesPart(Part):
    """Something else than a tensor."""


class ChunkPart(Part):
    """A piece of a tensor."""


class KeyPart(Part):
    """The name and offset of a piece."""


class PlacePart(Part):
    """Where a piece lies: file, offset, length."""


class SizePart(Part):
    """A size or offset."""


class OtherPart(Part):
    """What is not needed: layouts, memory formats, paths of the machine that wrote it."""


_METADATA, _FILESYSTEM = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_STAND_INS: dict[tuple[str, str], type[Part]] = {
    (_METADATA, "Metadata"): IndexPart,
    (_METADATA, "TensorStorageMetadata"): TensorPart,
    (_METADATA, "TensorProperties"): PropertiesPart,
    (_METADATA, "BytesStorageMetadata"): BytesPart,
    (_METADATA, "ChunkStorageMetadata"): ChunkPart,
    (_METADATA, "MetadataIndex"): KeyPart,
    (_FILESYSTEM, "_StorageInfo"): PlacePart,
    ("torch", "Size"): SizePart,
    (_METADATA, "_MEM_FORMAT_ENCODING"): OtherPart,
    (_METADATA, "StorageMeta"): OtherPart,
    ("torch.serialization", "_get_layout"): OtherPart,
    **{(module, name): OtherPart for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "WindowsPath")},
}
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


class _Unpickler(pickle._Unpickler):
    """Makes stand-ins of what the pickle names."""

    def find_class(self, module: str, name: str) -> object:
        """The stand-in of a class that an index is made of."""
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        known = _STAND_INS.get((module, name))
        if known is None:
            raise UsageError(
                f"it names {module}.{name}, which no index of tensors is made of: nothing of it has been run; "
                "do not trust where it comes from"
            )
        return known


def index_of(content: bytes) -> Metadata:
    """What the index `content` says, for torch to load by. Raises UsageError for anything else than an index."""
    try:
        found = _Unpickler(io.BytesIO(content)).load()
    except _BROKEN as error:
        raise UsageError(f"it is no index of tensors: {type(error).__name__} {str(error)[:100]}") from None
    index = _a(found, IndexPart, "it")
    places = _a(index.field("storage_data"), dict, "storage_data")
    entries = _a(index.field("state_dict_metadata"), dict, "state_dict_metadata")
    stored = dict(_place(key, value) for key, value in places.items())
    _require_as_many(entries, stored)
    tensors = {_a(name, str, "a name"): _entry(name, entry, stored) for name, entry in entries.items()}
    return Metadata(state_dict_metadata=tensors, storage_data=stored, storage_meta=StorageMeta())


T = TypeVar("T")


def _a(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UsageError(f"{what} is {type(value).__name__}, {kind.__name__} was expected")
    return value


def _require_as_many(entries: dict[object, object], stored: dict[MetadataIndex, _StorageInfo]) -> None:
    """Every piece of a tensor lies somewhere: not more of them are gone through than that."""
    chunks = [entry.field("chunks") for entry in entries.values() if isinstance(entry, TensorPart)]
    total = sum(len(_a(one, list, "chunks")) for one in chunks)
    if total > len(stored):
        raise UsageError(f"its tensors have {total} chunks, of which {len(stored)} lie in files")


def _entry(
    name: object, entry: object, stored: dict[MetadataIndex, _StorageInfo]
) -> TensorStorageMetadata | BytesStorageMetadata:
    if isinstance(entry, BytesPart):
        return BytesStorageMetadata()
    tensor = _a(entry, TensorPart, f"{name!s:.80}")
    size = _size(tensor.field("size"), f"the size of {name!s:.80}")
    chunks = [_chunk(one, size, str(name)) for one in _a(tensor.field("chunks"), list, "chunks")]
    for chunk in chunks:
        if MetadataIndex(str(name), chunk.offsets) not in stored:
            raise UsageError(f"the chunk of {name!s:.80} at {tuple(chunk.offsets)} lies in no file")
    properties = TensorProperties(dtype=_dtype(tensor.field("properties"), str(name)))
    return TensorStorageMetadata(properties=properties, size=size, chunks=chunks)


def _dtype(properties: object, name: str) -> torch.dtype:
    state = _a(properties, PropertiesPart, f"the type of {name:.80}").state
    first = state[0] if isinstance(state, tuple) and state else None
    return _a(first, torch.dtype, f"the type of {name:.80}")


def _chunk(part: object, whole: torch.Size, name: str) -> ChunkStorageMetadata:
    chunk = _a(part, ChunkPart, f"a chunk of {name:.80}")
    offsets = _size(chunk.field("offsets"), f"the offsets of a chunk of {name:.80}")
    sizes = _size(chunk.field("sizes"), f"the sizes of a chunk of {name:.80}")
    inside = len(offsets) == len(sizes) == len(whole) and all(
        start + size <= end for start, size, end in zip(offsets, sizes, whole, strict=True)
    )
    if not inside:
        raise UsageError(f"{name:.80} of size {tuple(whole)} has a chunk of {tuple(sizes)} at {tuple(offsets)}")
    return ChunkStorageMetadata(offsets=offsets, sizes=sizes)


def _size(part: object, what: str) -> torch.Size:
    arguments = _a(part, SizePart, what).arguments
    dims = arguments[0] if len(arguments) == 1 else None
    numbers = [_a(dim, int, what) for dim in _a(dims, tuple, what)]
    if len(numbers) > MOST_DIMS or any(dim < 0 for dim in numbers) or prod(numbers) > MOST_ELEMENTS:
        raise UsageError(f"{what} is {str(tuple(numbers))[:80]}, which no tensor has")
    return torch.Size(numbers)


def _place(key: object, value: object) -> tuple[MetadataIndex, _StorageInfo]:
    at, place = _a(key, KeyPart, "a key of storage_data"), _a(value, PlacePart, "a place of storage_data")
    name, file = _a(at.field("fqn"), str, "fqn"), _a(place.field("relative_path"), str, "relative_path")
    offset, length = (_a(place.field(field), int, f"{field} of {name:.80}") for field in ("offset", "length"))
    if file in ("", ".", "..") or Path(file).name != file or "\0" in file or len(file) > 255:
        raise UsageError(f"{name:.80} lies in {file!r:.80}, which is no file of the checkpoint's folder")
    if offset < 0 or length < 0 or offset + length >= 2**63:
        raise UsageError(f"{name:.80} lies at offset {offset!s:.80} of {file}, {length!s:.80} bytes long")
    if place.field("transform_descriptors"):
        raise UsageError(f"{name:.80} is stored by an extension of torch that placer does not read")
    start = at.field("offset")
    found = MetadataIndex(name, None if start is None else _size(start, f"the offset of {name:.80}"))
    return found, _StorageInfo(file, offset, length)
