"""A folder of checkpoints: which are whole, which cannot be read, and what is done to the folder as a run goes on.

    FOLDER/step-00000100/            torch.distributed.checkpoint, keyed by the model's own names
    FOLDER/step-00000100/complete.json    written last: step, data position, the model's fingerprint
    FOLDER/.step-00000200.partial/   being written; renamed when all ranks are done, removed by the next run
    FOLDER/step-00000100.unreadable/ complete once, not readable later: kept, never loaded, never removed

FOLDER is locked while a run uses it.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from torch.distributed.checkpoint.filesystem import FileSystemReader

from placer.errors import ExecutionError, PlacerError, UsageError
from placer.io.files import write_text
from placer.runtime.distributed.progress import Tick

MARKER = "complete.json"
COMPLETE = re.compile(r"step-(\d{8,})$")
# What reading a damaged checkpoint raises: files that are missing, cut short, or hold something else.
UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, EOFError, AttributeError, pickle.UnpicklingError)


class Progress(BaseModel):
    """How far a run has come: steps done, and the position of the next batch."""

    model_config = ConfigDict(frozen=True)

    step: int
    position: int


class Marker(Progress):
    """What complete.json says."""

    fingerprint: str
    ranks: int
    schema_version: int = 1


def latest(folder: str | Path) -> Path | None:
    """The last checkpoint in `folder` that is whole; None where there is none."""
    return next((path for path in candidates(Path(folder)) if unreadable(path) is None), None)


def marker_of(path: Path) -> Marker | None:
    """What the checkpoint `path` says of itself; None where it is none."""
    return read_marker(path) if (path / MARKER).is_file() and unreadable(path) is None else None


def candidates(folder: Path) -> list[Path]:
    """Every checkpoint of `folder` that was completed once, the last first, whether it can still be read or not."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if COMPLETE.match(path.name) and (path / MARKER).exists()]
    return sorted(named, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def unreadable(path: Path) -> str | None:
    """Why `path` is no whole checkpoint; None where nothing shows. Files that are cut short are found by their size."""
    try:
        read_marker(path)
    except (*UNREADABLE, ValidationError) as error:
        return f"{MARKER}: {first_line(error)}"
    try:
        pieces = FileSystemReader(path).read_metadata().storage_data.values()
        ends: dict[str, int] = {}
        for piece in pieces:
            name = str(piece.relative_path)
            ends[name] = max(ends.get(name, 0), piece.offset + piece.length)
        for name, end in ends.items():
            size = (path / name).stat().st_size
            if size < end:
                return f"{name} is cut short: {size} of {end} bytes"
    except UNREADABLE as error:
        return f".metadata: {first_line(error)}"
    return None


def read_marker(path: Path) -> Marker:
    """What complete.json of a whole checkpoint says."""
    return Marker.model_validate_json((path / MARKER).read_text())


def aside(path: Path) -> Path:
    """Where what stands in the way of a checkpoint is kept: it may be all that is left of a run."""
    return path.with_name(f"{path.name}.unreadable")


def put_aside(paths: Iterable[Path]) -> None:
    """Keep them under another name. Raises UsageError where something has it."""
    for path in paths:
        kept = aside(path)
        if kept.exists():
            raise UsageError(f"{kept} is in the way of {path}, which cannot be read either; move one of them away")
        path.rename(kept)


def lock_folder(folder: Path) -> int:
    """A handle that locks `folder` while it is open. Raises UsageError where another run holds the lock.

    A file system without locks (some network ones) gives none: there two runs are not told apart.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(
            f"another run uses the checkpoint folder {folder}; wait for its end, or give another with --checkpoint"
        ) from None
    except OSError:
        return handle
    return handle


def begin_writing(folder: Path, partial: Path, tick: Tick) -> None:
    """Make the folder `partial` in `folder`, rid of what broken runs left. Raises ExecutionError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.partial"):
            _remove(left, tick)
        partial.mkdir()
    except OSError as error:
        raise ExecutionError(failed_to_write(partial, error)) from error


def complete(partial: Path, final: Path, marker: Marker) -> None:
    """Make what was written to `partial` the checkpoint `final`."""
    write_text(partial / MARKER, marker.model_dump_json())
    _sync(partial)
    if final.exists():
        put_aside((final,))
    os.replace(partial, final)
    _sync(final.parent)


def remove_older(folder: Path, keep: int, tick: Tick) -> None:
    """Remove all whole checkpoints but the last `keep`."""
    whole = (path for path in candidates(folder) if unreadable(path) is None)
    for old in tuple(whole)[keep:]:
        with suppress(OSError):  # one checkpoint too many harms nothing
            _remove(old, tick)


def _remove(folder: Path, tick: Tick) -> None:
    """Remove a folder file by file, each of which is progress."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
        tick()
    folder.rmdir()


def failed_to_write(path: Path, error: BaseException) -> str:
    """What to say of a checkpoint that could not be written."""
    return (
        f"the checkpoint {path} could not be written: {first_line(error)}; free space or give another folder and "
        "start again: the run goes on from the last complete checkpoint"
    )


def first_line(error: BaseException) -> str:
    """The innermost reason in one line; torch wraps the errors of ranks in one of its own."""
    failures = getattr(error, "failures", None) or {}
    for rank, (inner, _) in failures.items():
        return f"rank {rank}: {first_line(inner)}"
    if isinstance(error, PlacerError):
        return str(error).split("\n")[0]
    if isinstance(error, EOFError) and not str(error):
        return "a file of it ends too early"
    return f"{type(error).__name__}: {error}".split("\n")[0]


def stored_keys(path: Path) -> frozenset[str]:
    """The names of all that a checkpoint holds."""
    return frozenset(FileSystemReader(path).read_metadata().state_dict_metadata)


def _sync(folder: Path) -> None:
    """Make renames and new files in `folder` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
