"""Checkpoints that are complete or do not exist, and load under another layout.

    FOLDER/step-00000100/            torch.distributed.checkpoint, keyed by the model's own names
    FOLDER/step-00000100/complete.json    written last: step, data position, the model's fingerprint
    FOLDER/.step-00000200.partial/   being written; renamed when all ranks are done, removed by the next run

The optimizer's state is flattened to parameter names, so that a pipeline of two stages loads what four wrote.
FOLDER must be visible to all ranks.
"""

from __future__ import annotations

import os
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, ValidationError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from placer.errors import ExecutionError, StalePlanError, UsageError
from placer.files import write_text
from placer.runtime.world import World

MARKER = "complete.json"
COMPLETE = re.compile(r"step-(\d{8,})$")
# Ranks write at the speed of their disks; waiting for the slowest is no fault. A rank that dies is still seen at once.
WRITING_SECONDS = 1800.0

State = dict[str, "State | torch.Tensor | float | int | bool | str | tuple[float, ...] | None"]


class Progress(BaseModel):
    """How far a run has come: steps done, and the position of the next batch."""

    model_config = ConfigDict(frozen=True)

    step: int
    position: int


class _Marker(Progress):
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
    """The checkpoints of one run in one folder; every rank makes one and calls its methods together with the others."""

    def __init__(self, folder: str | Path, world: World, *, fingerprint: str, keep: int = 2) -> None:
        self._folder, self._world, self._fingerprint, self._keep = Path(folder), world, fingerprint, keep
        self._group: dist.ProcessGroup | None = None

    def save(self, saved: Stateful, progress: Progress) -> Path:
        """Write a checkpoint of all ranks and return its folder. Raises ExecutionError; older ones stay as they are."""
        final = self._folder / f"step-{progress.step:08d}"
        partial = self._folder / f".step-{progress.step:08d}.partial"
        if self._world.first:
            _begin(self._folder, partial)
        self._wait()
        try:
            save(
                self._with_random_state(saved.state_dict()),
                storage_writer=FileSystemWriter(partial, sync_files=True),
                process_group=self._writers(),
            )
        except (CheckpointException, OSError) as error:
            raise ExecutionError(_failed_to_write(final, error)) from error
        if self._world.first:
            self._complete(partial, final, progress)
        self._wait()
        return final

    def resume(self, saved: Stateful) -> Progress | None:
        """Load the last complete checkpoint into `saved` and say how far it had come; None where there is none.

        Raises StalePlanError for a checkpoint of another model, UsageError for one that does not load.
        """
        path = latest(self._folder)
        self._wait()  # every rank has looked before the first writes
        if path is None:
            return None
        marker = _read_marker(path)
        assert marker is not None
        if marker.fingerprint != self._fingerprint:
            raise StalePlanError(
                f"the checkpoint {path} is of another model than the plan's; give another folder with --checkpoint"
            )
        state = self._with_random_state(saved.state_dict())
        known = _random_key(self._world.rank) in _keys(path)
        if not known:
            del state["random"]
        try:
            load(state, storage_reader=FileSystemReader(path), process_group=self._writers())
        except (CheckpointException, OSError, KeyError, RuntimeError) as error:
            raise UsageError(
                f"the checkpoint {path} does not load: {_first_line(error)}; remove it or give another"
            ) from error
        if known:
            self._restore_random_state(state)
        saved.load_state_dict(state)
        return Progress(step=marker.step, position=marker.position)

    def _complete(self, partial: Path, final: Path, progress: Progress) -> None:
        marker = _Marker(
            step=progress.step, position=progress.position, fingerprint=self._fingerprint, ranks=self._world.size
        )
        write_text(partial / MARKER, marker.model_dump_json())
        _sync(partial)
        if final.exists():
            shutil.rmtree(final)
        os.replace(partial, final)
        _sync(self._folder)
        for old in _complete_ones(self._folder)[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)

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

    def _writers(self) -> dist.ProcessGroup:
        """A group of all ranks that waits as long as writing may take."""
        if self._group is None:
            made = dist.new_group(backend="gloo", timeout=timedelta(seconds=WRITING_SECONDS))
            assert isinstance(made, dist.ProcessGroup)
            self._group = made
        return self._group

    def _wait(self) -> None:
        dist.barrier(group=self._writers())


def latest(folder: str | Path) -> Path | None:
    """The last complete checkpoint in `folder`; None where there is none."""
    found = _complete_ones(Path(folder))
    return found[-1] if found else None


def _complete_ones(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if COMPLETE.match(path.name) and _read_marker(path) is not None]
    return sorted(named, key=lambda path: int(path.name.split("-")[1]))


def _read_marker(path: Path) -> _Marker | None:
    try:
        return _Marker.model_validate_json((path / MARKER).read_text())
    except (OSError, ValidationError):
        return None


def _begin(folder: Path, partial: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        partial.mkdir()
    except OSError as error:
        raise ExecutionError(_failed_to_write(partial, error)) from error


def _failed_to_write(path: Path, error: BaseException) -> str:
    return (
        f"the checkpoint {path} could not be written: {_first_line(error)}; free space or give another folder and "
        "start again: the run goes on from the last complete checkpoint"
    )


def _first_line(error: BaseException) -> str:
    """The innermost reason in one line; torch wraps the errors of ranks in one of its own."""
    failures = getattr(error, "failures", None) or {}
    for rank, (inner, _) in failures.items():
        return f"rank {rank}: {type(inner).__name__}: {inner}".split("\n")[0]
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
