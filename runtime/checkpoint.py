"""Checkpoints that are complete or do not exist, and load under another layout.

    FOLDER/step-00000100/            torch.distributed.checkpoint, keyed by the model's own names
    FOLDER/step-00000100/complete.json    written last: step, data position, the model's fingerprint
    FOLDER/.step-00000200.partial/   being written; renamed when all ranks are done, removed by the next run
    FOLDER/step-00000100.unreadable/ complete once, not readable later: kept, never loaded, never removed

The optimizer's state is flattened to parameter names, so that a pipeline of two stages loads what four wrote.
FOLDER must be visible to all ranks. It is locked while a run uses it.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import re
import shutil
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar, Union, cast

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult

from placer.errors import ExecutionError, PlacerError, StalePlanError, UsageError
from placer.files import make_folder, write_text
from placer.runtime.beside import Beside
from placer.runtime.portions import LoadPlanner, Portion, SavePlanner
from placer.runtime.progress import Tick, Turns
from placer.runtime.world import DEFAULT_TIMEOUT_SECONDS, World
from placer.runtime.written import Writer

MARKER = "complete.json"
COMPLETE = re.compile(r"step-(\d{8,})$")
# Ranks read at the speed of their disks; waiting for the slowest is no fault. A rank that dies is still seen at once.
READING_SECONDS = 1800.0
# What reading a damaged checkpoint raises: files that are missing, cut short, or hold something else.
_UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, EOFError, AttributeError, pickle.UnpicklingError)

T = TypeVar("T")

Leaf = Union["State", torch.Tensor, Portion, float, int, bool, str, tuple[float, ...], None]
State = dict[str, Leaf]


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


class Stateful(Protocol):
    """What is saved: nested dicts of tensors (DTensors where sharded) and numbers, by the model's own names."""

    def state_dict(self) -> State:
        """Parameters, buffers and optimizer state of this rank."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` gave."""
        ...


class Checkpoints:
    """The checkpoints of one run in one folder; every rank makes one and calls its methods together with the others.

    patience_seconds: a rank that writes nothing for so long hangs.
    """

    def __init__(
        self, folder: str | Path, world: World, *, fingerprint: str, keep: int = 2,
        patience_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:  # fmt: skip
        self._folder, self._world, self._fingerprint, self._keep = Path(folder), world, fingerprint, keep
        self._patience = patience_seconds
        self._group: dist.ProcessGroup | None = None
        self._together: _Together | None = None
        self._lock: int | None = None
        self._beside = Beside()
        self.notes: tuple[str, ...] = ()

    def save(self, saved: Stateful, progress: Progress) -> Path:
        """Write a checkpoint of all ranks and return its folder. Raises ExecutionError; older ones stay as they are."""
        self.finish()
        state = self._with_random_state(saved.state_dict())
        dist.barrier()  # a rank that hangs until here is seen within the time of a step, not that of writing
        return self._written(state, progress)

    def save_beside(self, saved: Stateful, progress: Progress) -> Path:
        """The same, written beside what follows: only the copy to host memory is done when this returns.

        One that is still being written is waited for first. A failure is raised by the next call of any method here.
        """
        self.finish()
        state = on_host(self._with_random_state(saved.state_dict()))
        self._writers()  # groups are made by all ranks in one order, so not in the thread
        self._beside.start(lambda: self._written(state, progress))
        return self._path(progress)

    def finish(self) -> None:
        """Wait until what is written beside is complete. Raises ExecutionError where it failed."""
        self._beside.finish()

    def require_no_failure(self) -> None:
        """Raise ExecutionError where what is written beside has failed already."""
        self._beside.require_no_failure()

    def _path(self, progress: Progress) -> Path:
        return self._folder / f"step-{progress.step:08d}"

    def _written(self, state: State, progress: Progress) -> Path:
        final = self._path(progress)
        partial = self._folder / f".step-{progress.step:08d}.partial"
        together = self._writers()
        turns, group = together.turns, together.group
        turns.first(lambda: self._begun(partial, turns.tick))
        try:
            writer = Writer(partial, turns.tick)
            save(state, storage_writer=writer, planner=SavePlanner(), process_group=group)
            parts: list[list[WriteResult]] = [[]] * self._world.size
            dist.all_gather_object(parts, turns.all(writer.write), group=group)
            turns.first(lambda: self._complete(writer, parts, partial, final, progress, turns.tick))
        except (CheckpointException, OSError, PlacerError) as error:
            if self._world.first:
                shutil.rmtree(partial, ignore_errors=True)
            self._together = None  # these turns have ended
            raise ExecutionError(_failed_to_write(final, error)) from error
        return final

    def _begun(self, partial: Path, tick: Tick) -> None:
        _begin(self._folder, partial, tick)
        self._claimed()

    def resume(self, saved: Stateful) -> Progress | None:
        """Load the last complete checkpoint into `saved` and say how far it had come; None where there is none.

        One that cannot be read is passed over for an older one, kept under another name, and named in `notes`.
        Raises StalePlanError for a checkpoint of another model, UsageError where one exists and none loads, or another
        run uses the folder.
        """
        self.agree(self._claimed)
        wrong: dict[Path, str] = {}
        for path in self.agree(lambda: _candidates(self._folder)):
            why = self._load(path, saved)
            if why is None:
                self.agree(lambda: _put_aside(wrong))
                self.notes = tuple(
                    f"the checkpoint {bad} cannot be read ({reason}); it is kept as {_aside(bad).name}, "
                    f"and the run goes on from {path.name}"
                    for bad, reason in wrong.items()
                )
                marker = _marker(path)
                return Progress(step=marker.step, position=marker.position)
            wrong[path] = why
        if wrong:
            listed = "; ".join(f"{path} does not load: {reason}" for path, reason in wrong.items())
            raise UsageError(f"the checkpoint {listed}; repair it, move it away or give another folder")
        return None

    def _load(self, path: Path, saved: Stateful) -> str | None:
        """Load `path`; why that cannot be, where it cannot. Every rank gives the same answer."""
        why = self.agree(lambda: _unreadable(path))
        if why is not None:
            return why
        if _marker(path).fingerprint != self._fingerprint:
            raise StalePlanError(
                f"the checkpoint {path} is of another model than the plan's; give another folder with --checkpoint"
            )
        state = self._with_random_state(saved.state_dict())
        known = _random_key(self._world.rank) in _keys(path)
        if not known:
            del state["random"]
        try:
            reader = FileSystemReader(path)
            load(state, storage_reader=reader, planner=LoadPlanner(), process_group=self._readers())
        except (CheckpointException, *_UNREADABLE) as error:
            return _first_line(error)
        if known:
            self._restore_random_state(state)
        saved.load_state_dict(state)
        return None

    def _claimed(self) -> None:
        """Hold the folder for this run, until this object is gone."""
        if self._lock is None:
            self._lock = _lock(make_folder(self._folder))
            weakref.finalize(self, os.close, self._lock)

    def agree(self, deed: Callable[[], T]) -> T:
        """What `deed` gives on the first rank, on every rank; every rank raises what it raises there."""
        given: list[T | PlacerError | None] = [None]
        if self._world.first:
            try:
                given = [deed()]
            except PlacerError as error:
                given = [error]
        dist.broadcast_object_list(given, src=0, group=self._readers())
        if isinstance(given[0], PlacerError):
            raise given[0]
        return cast(T, given[0])

    def _complete(
        self, writer: Writer, parts: list[list[WriteResult]], partial: Path, final: Path, progress: Progress, tick: Tick
    ) -> None:
        writer.conclude(parts)
        marker = Marker(
            step=progress.step, position=progress.position, fingerprint=self._fingerprint, ranks=self._world.size
        )
        write_text(partial / MARKER, marker.model_dump_json())
        _sync(partial)
        if final.exists():
            _put_aside((final,))
        os.replace(partial, final)
        _sync(self._folder)
        whole = (path for path in _candidates(self._folder) if _unreadable(path) is None)
        for old in tuple(whole)[self._keep :]:
            with suppress(OSError):  # one checkpoint too many harms nothing
                _remove(old, tick)

    def _with_random_state(self, state: State) -> State:
        random: State = {"cpu": torch.get_rng_state()}
        if self._world.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self._world.device)
        return {**state, "random": {str(self._world.rank): random}}

    def _restore_random_state(self, state: State) -> None:
        every = state.pop("random")
        assert isinstance(every, dict)
        random = every[str(self._world.rank)]
        assert isinstance(random, dict)
        for kind, value in random.items():
            assert isinstance(value, torch.Tensor)
            if kind == "cpu":
                torch.set_rng_state(value)
            else:
                torch.cuda.set_rng_state(value, self._world.device)

    def _readers(self) -> dist.ProcessGroup:
        """A group of all ranks that waits as long as reading may take."""
        if self._group is None:
            self._group = _group(READING_SECONDS)
        return self._group

    def _writers(self) -> _Together:
        """A group of all ranks for what takes no time, and turns for writing."""
        if self._together is None:
            turns = Turns.agreed(self._world, self._patience, self.agree)
            self._together = _Together(turns=turns, group=_group(self._patience))
        return self._together


@dataclass(frozen=True, slots=True, kw_only=True)
class _Together:
    """How ranks that write keep together."""

    turns: Turns
    group: dist.ProcessGroup


def _group(seconds: float) -> dist.ProcessGroup:
    made = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    assert isinstance(made, dist.ProcessGroup)
    return made


def latest(folder: str | Path) -> Path | None:
    """The last checkpoint in `folder` that is whole; None where there is none."""
    return next((path for path in _candidates(Path(folder)) if _unreadable(path) is None), None)


def marker_of(path: Path) -> Marker | None:
    """What the checkpoint `path` says of itself; None where it is none."""
    return _marker(path) if (path / MARKER).is_file() and _unreadable(path) is None else None


def on_host(state: State) -> State:
    """A copy of `state` in host memory, which the steps that follow do not change."""
    return {name: _on_host(value) for name, value in state.items()}


def _on_host(value: Leaf) -> Leaf:
    if isinstance(value, dict):
        return on_host(value)
    if isinstance(value, Portion):
        return value.on_host()
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _candidates(folder: Path) -> list[Path]:
    """Every checkpoint of `folder` that was completed once, the last first, whether it can still be read or not."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if COMPLETE.match(path.name) and (path / MARKER).exists()]
    return sorted(named, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _unreadable(path: Path) -> str | None:
    """Why `path` is no whole checkpoint; None where nothing shows. Files that are cut short are found by their size."""
    try:
        Marker.model_validate_json((path / MARKER).read_text())
    except (*_UNREADABLE, ValidationError) as error:
        return f"{MARKER}: {_first_line(error)}"
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
    except _UNREADABLE as error:
        return f".metadata: {_first_line(error)}"
    return None


def _marker(path: Path) -> Marker:
    return Marker.model_validate_json((path / MARKER).read_text())


def _aside(path: Path) -> Path:
    """Where what stands in the way of a checkpoint is kept: it may be all that is left of a run."""
    return path.with_name(f"{path.name}.unreadable")


def _put_aside(paths: Iterable[Path]) -> None:
    for path in paths:
        kept = _aside(path)
        if kept.exists():
            raise UsageError(f"{kept} is in the way of {path}, which cannot be read either; move one of them away")
        path.rename(kept)


def _lock(folder: Path) -> int:
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


def _begin(folder: Path, partial: Path, tick: Tick) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.partial"):
            _remove(left, tick)
        partial.mkdir()
    except OSError as error:
        raise ExecutionError(_failed_to_write(partial, error)) from error


def _remove(folder: Path, tick: Tick) -> None:
    """Remove a folder file by file, each of which is progress."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
        tick()
    folder.rmdir()


def _failed_to_write(path: Path, error: BaseException) -> str:
    return (
        f"the checkpoint {path} could not be written: {_first_line(error)}; free space or give another folder and "
        "start again: the run goes on from the last complete checkpoint"
    )


def _first_line(error: BaseException) -> str:
    """The innermost reason in one line; torch wraps the errors of ranks in one of its own."""
    failures = getattr(error, "failures", None) or {}
    for rank, (inner, _) in failures.items():
        return f"rank {rank}: {_first_line(inner)}"
    if isinstance(error, PlacerError):
        return str(error).split("\n")[0]
    if isinstance(error, EOFError) and not str(error):
        return "a file of it ends too early"
    return f"{type(error).__name__}: {error}".split("\n")[0]


def _keys(path: Path) -> frozenset[str]:
    return frozenset(FileSystemReader(path).read_metadata().state_dict_metadata)


def _random_key(rank: int) -> str:
    return f"random.{rank}.cpu"


def _sync(folder: Path) -> None:
    """Make renames and new files in `folder` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
