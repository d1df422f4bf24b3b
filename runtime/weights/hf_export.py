"""From a checkpoint to a Hugging Face folder: safetensors by the model's own names, with config.json, read back by
transformers' `from_pretrained`.

    FOLDER/model.safetensors                      or model-00001-of-00003.safetensors ... with their index
    FOLDER/config.json                            of a transformers model
    FOLDER/checksums.json                         of all these, to which placer holds them when it reads them

One file's worth of tensors is in memory at a time. Tied weights are kept once, under the first of their names, as
transformers keeps them. The folder appears when all of it is written.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from placer.errors import ExecutionError, UsageError
from placer.io.files import write_text
from placer.runtime.storage.checksums import write_list
from placer.runtime.storage.reader import CheckpointReader, first_line
from placer.runtime.weights.hf_folder import INDEX, ONE_FILE
from placer.runtime.weights.tensor_chunks import LoadPlanner

# transformers' own default of `save_pretrained(max_shard_size)` is 50 GB since version 5, and was 5 GB: files that any
# machine can hold at once.
FILE_BYTES = 5 * 10**9
_MODEL = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: a folder of `files` weight files with `tensors` tensors of `bytes` bytes."""

    folder: str
    files: int
    tensors: int
    bytes: int


def require_new(folder: str | Path) -> None:
    """Raise UsageError where `folder` holds something already: weights are never written over others."""
    path = Path(folder)
    if path.resolve() == Path.cwd():
        raise UsageError(
            f"{folder} is the folder this command runs in, which weights cannot replace; name one inside it"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; name another for the weights")


def export_weights(
    checkpoint: CheckpointReader, model: nn.Module, folder: str | Path, file_bytes: int = FILE_BYTES
) -> Exported:
    """Write the weights of a checkpoint of `model` (meta is fine) to the new `folder`, in files of about `file_bytes`.

    Raises UsageError where the folder is not new, or the checkpoint lacks a weight or is not what was written,
    ExecutionError where the disk fails.
    """
    require_new(folder)
    sizes = _sizes(checkpoint, model)
    groups = tuple(_grouped(sizes, file_bytes))
    final = Path(folder).resolve()
    partial = final.with_name(f".{final.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        place: dict[str, str] = {}
        for index, names in enumerate(groups):
            file = ONE_FILE if len(groups) == 1 else f"model-{index + 1:05d}-of-{len(groups):05d}.safetensors"
            _save(_read(checkpoint, {name: sizes[name] for name in names}), partial / file)
            place |= dict.fromkeys(names, file)
        total = sum(map(_bytes, sizes.values()))
        _describe(partial, model, place, total, several=len(groups) > 1)
        write_list(partial)
        if final.exists():
            final.rmdir()
        os.replace(partial, final)
    except (OSError, SafetensorError) as error:  # the latter of a disk that is full
        raise ExecutionError(
            f"the weights could not be written to {folder}: {error}; free space and try again"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(folder=str(folder), files=len(groups), tensors=len(sizes), bytes=total)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file with the rights that new ones get: safetensors (0.8) leaves its own to the owner alone."""
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, {"format": "pt"})
    path.chmod(mode)


def _sizes(checkpoint: CheckpointReader, model: nn.Module) -> dict[str, TensorStorageMetadata]:
    """What the checkpoint says of each weight, tied ones once, in the model's order."""
    every = checkpoint.read_index().state_dict_metadata
    seen: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    model_sizes = {name: tensor.shape for name, tensor in state.items()}
    for name, tensor in state.items():
        seen.setdefault(id(tensor), []).append(name)
    found: dict[str, TensorStorageMetadata] = {}
    for names in seen.values():
        known = next((every[_MODEL + name] for name in names if _MODEL + name in every), None)
        if not isinstance(known, TensorStorageMetadata):
            raise UsageError(
                f"the checkpoint {checkpoint.path} lacks {names[0]}; give a checkpoint of {type(model).__name__}"
            )
        if known.size != model_sizes[names[0]]:
            raise UsageError(
                f"the checkpoint {checkpoint.path} has {names[0]} of {tuple(known.size)}, the model's is "
                f"{tuple(model_sizes[names[0]])}; give a checkpoint of {type(model).__name__}"
            )
        found[names[0]] = known
    return found


def _grouped(sizes: Mapping[str, TensorStorageMetadata], file_bytes: int) -> Iterator[tuple[str, ...]]:
    """Runs of weights of at most `file_bytes`, or of one weight."""
    names: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if names and filled + _bytes(size) > file_bytes:
            yield tuple(names)
            names, filled = [], 0
        names.append(name)
        filled += _bytes(size)
    yield tuple(names)


def _read(checkpoint: CheckpointReader, sizes: Mapping[str, TensorStorageMetadata]) -> dict[str, torch.Tensor]:
    found = {name: torch.empty(size.size, dtype=size.properties.dtype) for name, size in sizes.items()}
    named = {_MODEL + name: tensor for name, tensor in found.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process reads: so it is meant
        try:
            load(named, storage_reader=checkpoint, planner=LoadPlanner(), no_dist=True)
        except CheckpointException as error:
            raise UsageError(
                f"the checkpoint {checkpoint.path} cannot be read: {first_line(error)}; give another checkpoint"
            ) from None
    return found


def _bytes(size: TensorStorageMetadata) -> int:
    return size.size.numel() * size.properties.dtype.itemsize


def _describe(folder: Path, model: nn.Module, place: Mapping[str, str], total: int, *, several: bool) -> None:
    """The index of several files, and the configuration of a transformers model."""
    if several:
        index = {"metadata": {"total_size": total}, "weight_map": dict(place)}
        write_text(folder / INDEX, json.dumps(index, indent=1, sort_keys=True))
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        content = {**config.to_dict(), "architectures": [type(model).__name__]}
        write_text(folder / "config.json", json.dumps(content, indent=1, sort_keys=True, default=str))
