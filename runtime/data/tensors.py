"""A folder of tensors as training data; every file is memory-mapped and read by rows.

    NAME.safetensors, NAME.pt    a shard: tensors named like the model's inputs, the same number of rows (dim 0) each
    INPUT.npy                    all rows of one input; INPUT-1.npy, INPUT-2.npy, ... in several shards (pieces.py)

`.pt` files are read with weights_only. Shards are taken in order of their names, numbered ones of their numbers.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path

import numpy
import torch
from safetensors import SafetensorError, safe_open

from placer.errors import UsageError
from placer.graph import Graph, IndexedPart, Input
from placer.runtime.data.batches import Batch, Data, SampleOrder
from placer.runtime.data.pieces import Piece, in_order, input_of, require_paired

# torch knows these in few ops: neither what is largest nor a comparison.
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
# What torch's losses over classes leave out unless told otherwise.
IGNORED = -100

TENSOR_SUFFIXES = (".pt", ".npy", ".safetensors")


def tensor_files(folder: Path) -> tuple[Path, ...]:
    """The tensor files of `folder`, in order."""
    found = (path for path in folder.iterdir() if path.suffix in TENSOR_SUFFIXES and path.is_file())
    return tuple(sorted(found, key=in_order))


def tensor_data(files: tuple[Path, ...], graph: Graph, *, rows: int, seed: int) -> Data:
    """Rows of tensors as the inputs of a model. Raises UsageError where they do not fit it or each other."""
    columns = {entry.name: _column(files, entry) for entry in graph.inputs}
    counts = {name: column.rows for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(f"the inputs in {files[0].parent} differ in rows: {shown}; give each input the same rows")
    require_paired({name: column.pieces for name, column in columns.items()})
    samples = next(iter(counts.values()), 0)
    if not samples:
        raise UsageError(f"the tensors in {files[0].parent} have no rows; give at least one")

    def gather(chosen: list[int]) -> Batch:
        return {
            entry.name: checked(entry, columns[entry.name].take(chosen), graph, columns[entry.name].file_of(chosen))
            for entry in graph.inputs
        }

    return SampleOrder(samples, rows, seed).data(f"tensors, {samples} rows", gather)


class _Column:
    """All rows of one input, in shards, and in which file each lies."""

    def __init__(self, shards: Mapping[Path, torch.Tensor]) -> None:
        self._shards = tuple(shards.values())
        self._ends = tuple(accumulate(shard.shape[0] for shard in self._shards))
        self.pieces = tuple(Piece(path=path, rows=shard.shape[0]) for path, shard in shards.items())
        self.rows = self._ends[-1] if self._ends else 0

    def take(self, samples: list[int]) -> torch.Tensor:
        return torch.stack([signed(self._row(sample)) for sample in samples])

    def file_of(self, samples: list[int]) -> Callable[[int], str]:
        """The file of each of these rows."""
        return lambda row: str(self.pieces[bisect_right(self._ends, samples[row])].path)

    def _row(self, sample: int) -> torch.Tensor:
        shard = bisect_right(self._ends, sample)
        return self._shards[shard][sample - (self._ends[shard - 1] if shard else 0)]


def _column(files: tuple[Path, ...], entry: Input) -> _Column:
    shards: dict[Path, torch.Tensor] = {}
    for path in files:
        tensors = _read(path)
        if entry.name in tensors:
            shards[path] = fitting(path, entry, _tensor(path, entry.name, tensors[entry.name]))
        elif path.suffix != ".npy":
            held = ", ".join(sorted(map(str, tensors))) or "none"
            raise UsageError(f"{path} has no tensor {entry.name!r}, an input of the model; it holds: {held}")
    if not shards:
        raise UsageError(
            f"{files[0].parent} has no file {entry.name}.npy for the input {entry.name} of the model; add it"
        )
    return _Column(shards)


def _read(path: Path) -> Mapping[str, object]:
    """What a file holds by names; of a .pt file also what no input is (names of the rows, say)."""
    try:
        if path.suffix == ".npy":
            return {input_of(path): torch.from_numpy(numpy.load(path, mmap_mode="c", allow_pickle=False))}
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        loaded = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except (ValueError, OSError, RuntimeError, SafetensorError, pickle.UnpicklingError, EOFError) as error:
        raise UsageError(f"{path} cannot be read as tensors: {error}; write it again") from None
    except TypeError as error:  # times and texts
        raise UsageError(f"{path} holds no numbers that torch knows: {error}; write them as integers") from None
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} must hold a dict from input names to tensors, it holds {type(loaded).__name__}")
    return loaded


def _tensor(path: Path, name: str, held: object) -> torch.Tensor:
    if not isinstance(held, torch.Tensor) or held.layout != torch.strided:
        raise UsageError(f"{path}: {name} is a {type(held).__name__}; write it as a dense tensor, a row each")
    return held


def fitting(path: Path | str, entry: Input, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` (rows first) of the file `path` where the input can take it; raises UsageError where it cannot."""
    wanted = entry.tensor.shape_at(1)[1:]
    if tensor.dim() == 0 or tuple(tensor.shape[1:]) != wanted:
        raise UsageError(
            f"{path}: {entry.name} has shape {tuple(tensor.shape)}, the model takes rows x {wanted}; make it fit"
        )
    dtype: torch.dtype = getattr(torch, entry.tensor.dtype)
    if tensor.dtype.is_complex or (tensor.dtype.is_floating_point and not dtype.is_floating_point):
        raise UsageError(
            f"{path}: {entry.name} holds {str(tensor.dtype).removeprefix('torch.')}, the model takes "
            f"{entry.tensor.dtype}; write it as that type, so that nothing is cut off unseen"
        )
    return tensor


def signed(tensor: torch.Tensor) -> torch.Tensor:
    """Unsigned integers as int64, in which all ops are; others as they are."""
    return tensor.to(torch.int64) if tensor.dtype in _UNSIGNED else tensor


def checked(entry: Input, tensor: torch.Tensor, graph: Graph, file_of: Callable[[int], str]) -> torch.Tensor:
    """`tensor` in the input's type; integers within the model's range, so that a bad label is named here.

    file_of: where a row lies.
    """
    for part in _parts(entry, graph):
        held = tensor if part.dim is None else tensor.narrow(part.dim, part.first, part.last - part.first)
        wrong = (held >= part.high) | (held < 0)
        if part.ignored is not None:
            wrong &= held != part.ignored
        if wrong.any():
            where = "" if part.dim is None else f" ({part.first} to {part.last - 1} of dim {part.dim})"
            but = "" if part.ignored is None else f" but {part.ignored}, in labels that do not count"
            raise UsageError(
                f"{file_of(int(wrong.nonzero()[0][0]))}: input {entry.name} holds {int(held[wrong][0])}{where}, the "
                f"model takes less than {part.high} and no number below 0{but}; write it anew, or plan for a model "
                "that knows such"
            )
    dtype: torch.dtype = getattr(torch, entry.tensor.dtype)
    return tensor.to(dtype)


def _parts(entry: Input, graph: Graph) -> tuple[IndexedPart, ...]:
    """What of an input is an index."""
    if entry.parts is not None:
        return entry.parts
    if entry.high is None:
        return ()
    known = graph.loss.ignore_index if graph.loss.labels == entry.name else None
    return (IndexedPart(high=entry.high, ignored=IGNORED if known is None else known),)
