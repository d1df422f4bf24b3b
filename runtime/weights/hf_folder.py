"""Weights in a Hugging Face folder: model.safetensors, or several with model.safetensors.index.json; read by slices.

A tensor of the model is a formula over tensors of the files: one of them, or several put together as transformers'
own table for the model says (experts that lie apart in the files and are one tensor in the model). A part of it is read
without the rest: only the slices of the files that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from placer.errors import UsageError
from placer.io.files import parsed_json, read_text
from placer.runtime.weights.sources import Box, Ranges, between

INDEX = "model.safetensors.index.json"
ONE_FILE = "model.safetensors"


class _Slice(Protocol):
    """What safetensors gives for a tensor of a file."""

    def get_shape(self) -> list[int]: ...

    def __getitem__(self, at: tuple[slice, ...]) -> torch.Tensor: ...


class _Handle(Protocol):
    """What safetensors gives for a file."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, key: str) -> torch.Tensor: ...

    def get_slice(self, key: str) -> _Slice: ...


class Formula(Protocol):
    """How a tensor of the model is made of tensors in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all of it."""
        ...

    def read(self, box: Box) -> torch.Tensor:
        """A part of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Tensor `key` of an open file."""

    file: _Handle
    key: str
    shape: tuple[int, ...]

    def read(self, box: Box) -> torch.Tensor:
        """The slices of the file, put together."""
        if not self.shape:
            return self.file.get_tensor(self.key).clone()
        return self._read(dict(box.cuts), ())

    def _read(self, cuts: Mapping[int, Ranges], taken: tuple[slice, ...]) -> torch.Tensor:
        dim = len(taken)
        if dim == len(self.shape):
            # What safetensors gives keeps the memory of all of it (0.8), which a copy lets go.
            return self.file.get_slice(self.key)[taken].clone()
        ranges = cuts.get(dim, ((0, self.shape[dim]),))
        return _joined([self._read(cuts, (*taken, slice(start, end))) for start, end in ranges], dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """`parts` of one shape along a new dim 0."""

    parts: tuple[Formula, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of parts, then theirs."""
        return (len(self.parts), *self.parts[0].shape)

    def read(self, box: Box) -> torch.Tensor:
        """The same of each part that is asked for."""
        cuts = dict(box.cuts)
        ranges = cuts.pop(0, ((0, len(self.parts)),))
        inner = Box(shape=self.shape[1:], cuts=tuple((dim - 1, found) for dim, found in sorted(cuts.items())))
        found = [self.parts[index].read(inner) for start, end in ranges for index in range(start, end)]
        return torch.stack(found) if found else torch.empty(0, *inner.taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """`parts` one after another along `dim`."""

    dim: int
    parts: tuple[Formula, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of a part, longer."""
        first = self.parts[0].shape
        return (*first[: self.dim], sum(part.shape[self.dim] for part in self.parts), *first[self.dim + 1 :])

    def read(self, box: Box) -> torch.Tensor:
        """What each part has of it, in the order asked for."""
        cuts = dict(box.cuts)
        ranges = cuts.pop(self.dim, ((0, self.shape[self.dim]),))
        found = [piece for start, end in ranges for piece in self._between(start, end, cuts)]
        return _joined(found, self.dim)

    def _between(self, start: int, end: int, cuts: Mapping[int, Ranges]) -> Iterable[torch.Tensor]:
        before = 0
        for part in self.parts:
            size = part.shape[self.dim]
            own = between(((0, size),), max(0, start - before), min(size, end - before))
            before += size
            if own[0][0] < own[0][1] or len(self.parts) == 1:
                yield part.read(Box(shape=part.shape, cuts=tuple(sorted({**cuts, self.dim: own}.items()))))


def leaves(folder: Path) -> dict[str, Leaf]:
    """Every tensor in the folder by its key. Raises UsageError where there are no safetensors, or a file is missing."""
    found: dict[str, Leaf] = {}
    for file in _files(folder):
        handle = _opened(file)
        for key in handle.keys():  # noqa: SIM118 - a handle is no mapping
            found[key] = Leaf(file=handle, key=key, shape=tuple(handle.get_slice(key).get_shape()))
    return found


def _files(folder: Path) -> tuple[Path, ...]:
    index = folder / INDEX
    if index.is_file():
        content = parsed_json(read_text(index, "the index of weights"), f"the index {index}")
        names = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(names, dict):
            raise UsageError(f"{index} has no weight_map; give a folder that `save_pretrained` wrote")
        files = tuple(sorted({folder / str(name) for name in names.values()}))
    else:
        files = (folder / ONE_FILE,)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise UsageError(
            f"--weights {folder} has no {', '.join(missing[:3])}; give a Hugging Face folder with model.safetensors, "
            "or all the files its index names"
        )
    return files


def _opened(file: Path) -> _Handle:
    try:
        return cast(_Handle, safe_open(str(file), framework="pt", device="cpu"))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{file} cannot be read as safetensors: {error}; copy it again") from None


def _joined(found: list[torch.Tensor], dim: int) -> torch.Tensor:
    return found[0] if len(found) == 1 else torch.cat(found, dim)
