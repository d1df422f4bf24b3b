"""Checkpoints that are complete or do not exist, and load under another layout.

The optimizer's state is flattened to parameter names, so that a pipeline of two stages loads what four wrote.
The folder must be visible to all ranks; what lies in it is told in `checkpoint.folder`.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TypeVar, cast

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from placer.errors import ExecutionError, PlacerError, StalePlanError, UsageError
from placer.io.files import make_folder
from placer.runtime.checkpoint.background import Beside
from placer.runtime.checkpoint.folder import (
    Marker,
    Progress,
    aside,
    begin_writing,
    candidates,
    complete,
    empty,
    failed_to_write,
    incomplete,
    lock_folder,
    put_aside,
    read_marker,
    remove_older,
    unreadable,
    without_buffers,
    without_checksums,
)
from placer.runtime.checkpoint.other_settings import (
    left_out,
    model_names,
    of_another_model,
    optimizer_keys,
    requests,
    unlike,
)
from placer.runtime.checkpoint.stateful import (
    State,
    Stateful,
    keep_buffers_of,
    keep_random_of,
    keep_reached_of,
    on_host,
    take_random_state,
    with_random_state,
)
from placer.runtime.checkpoint.writer import CheckpointWriter, Written
from placer.runtime.distributed.progress import Tick, Turns
from placer.runtime.distributed.world import TIMEOUT_SECONDS, World
from placer.runtime.storage.reader import CheckpointReader, first_line
from placer.runtime.weights.tensor_chunks import LoadPlanner, SavePlanner

# Ranks read at the speed of their disks; waiting for the slowest is no fault. A rank that dies is still seen at once.
READING_SECONDS = 1800.0

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one run in one folder; every rank makes one and calls its methods together with the others.

    patience_seconds: a rank that writes nothing for so long hangs.
    """

    def __init__(
        self, folder: str | Path, world: World, *, fingerprint: str, keep: int = 2,
        patience_seconds: float = TIMEOUT_SECONDS,
    ) -> None:  # fmt: skip
        self._folder, self._world, self._fingerprint, self._keep = Path(folder), world, fingerprint, keep
        self._patience = patience_seconds
        self._group: dist.ProcessGroup | None = None
        self._together: tuple[Turns, dist.ProcessGroup] | None = None
        self._lock: int | None = None
        self._beside = Beside()
        self.notes: tuple[str, ...] = ()

    def save(self, saved: Stateful, progress: Progress) -> Path:
        """Write a checkpoint of all ranks and return its folder. Raises ExecutionError; older ones stay as they are."""
        self.finish()
        state = with_random_state(saved.state_dict(), self._world)
        dist.barrier()  # a rank that hangs until here is seen within the time of a step, not that of writing
        return self._written(state, progress)

    def save_beside(self, saved: Stateful, progress: Progress) -> Path:
        """The same, written beside what follows: only the copy to host memory is done when this returns.

        One that is still being written is waited for first. A failure is raised by the next call of any method here.
        """
        self.finish()
        state = on_host(with_random_state(saved.state_dict(), self._world))
        self._writers()  # groups are made by all ranks in one order, so not in the thread
        self._beside.start(lambda: self._written(state, progress))
        return self._path(progress)

    def begin_anew(self) -> None:
        """Remove all that lies in the folder, which this run then holds. Raises UsageError where another run does."""
        turns, _ = self._writers()
        turns.first(lambda: self._emptied(turns.tick))

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
        turns, group = self._writers()
        turns.first(lambda: self._begun(partial, turns.tick))
        try:
            writer = CheckpointWriter(partial, turns.tick)
            save(state, storage_writer=writer, planner=SavePlanner(), process_group=group)
            parts: list[Written] = [Written(results=[], files={})] * self._world.size
            dist.all_gather_object(parts, turns.all(writer.write), group=group)
            turns.first(lambda: self._complete(writer, parts, partial, final, progress, turns.tick))
        except (CheckpointException, OSError, PlacerError) as error:
            if self._world.first:
                shutil.rmtree(partial, ignore_errors=True)
            self._together = None  # these turns have ended
            raise ExecutionError(failed_to_write(final, error)) from error
        return final

    def _emptied(self, tick: Tick) -> None:
        self._claimed()
        empty(self._folder, tick)

    def _begun(self, partial: Path, tick: Tick) -> None:
        begin_writing(self._folder, partial, tick)
        self._claimed()

    def resume(self, saved: Stateful) -> Progress | None:
        """Load the last complete checkpoint into `saved` and say how far it had come; None where there is none.

        One that cannot be read is passed over for an older one, kept under another name, and named in `notes`.
        Raises StalePlanError for a checkpoint of another model, UsageError for one of another optimizer, where one
        exists and none loads, or another run uses the folder.
        """
        self.agree(self._claimed)
        self.notes = ()
        wrong: dict[Path, str] = {}
        for path in self.agree(lambda: candidates(self._folder)):
            why = self._load(path, saved)
            if why is None:
                return self._taken(path, wrong)
            wrong[path] = why
        self.notes = self.agree(lambda: incomplete(self._folder))
        if wrong:
            listed = "; ".join(f"{path} does not load: {reason}" for path, reason in wrong.items())
            raise UsageError(f"the checkpoint {listed}; repair it, move it away or give another folder")
        return None

    def _taken(self, path: Path, wrong: Mapping[Path, str]) -> Progress:
        """How far `path` had come, which is loaded; those that cannot be read are put aside, and named in `notes`."""
        self.agree(lambda: put_aside(wrong))
        passed_over = (
            f"the checkpoint {bad} cannot be read ({reason}); it is kept as {aside(bad).name}, "
            f"and the run goes on from {path.name}"
            for bad, reason in wrong.items()
        )
        marker = read_marker(path)
        parts = self.agree(lambda: incomplete(self._folder, marker.step))
        self.notes = (*passed_over, *parts, *without_checksums(path), *self.notes)
        return Progress.model_validate(marker.model_dump(include={*Progress.model_fields}))

    def _load(self, path: Path, saved: Stateful) -> str | None:
        """Load `path`; why that cannot be, where it cannot. Every rank gives the same answer."""
        why = self.agree(lambda: unreadable(path))
        if why is not None:
            return why
        marker = read_marker(path)
        state = with_random_state(saved.state_dict(), self._world)
        reader = CheckpointReader(path, marker.files)
        index = reader.read_index()
        known = keep_random_of(state, self._world, index.state_dict_metadata)
        lacking = self._every(keep_buffers_of(state, index.state_dict_metadata))
        held = {name for names in self._every(model_names(state)) for name in names}
        other = of_another_model(held, index)
        if marker.fingerprint != self._fingerprint and not other:
            other = "weights of these names, of other sizes or in another computation"
        if other:
            raise StalePlanError(
                f"the checkpoint {path} is of another model than the plan's ({other}); "
                "give another folder with --checkpoint"
            )
        asked, told = requests(state, index), self._every(unlike(state, index))
        for reason in filter(None, told):
            raise UsageError(f"the checkpoint {path} {reason}")
        kept = {key for keys in self._every(optimizer_keys(state)) for key in keys}
        keep_reached_of(state, index.state_dict_metadata)
        times = max(self._every(len(asked)))  # each is a deed of all ranks, of which some hold nothing of the kind
        try:
            for one in (*asked, *({} for _ in range(times - len(asked)))):
                load(one, storage_reader=reader, planner=LoadPlanner(), process_group=self._readers())
        except CheckpointException as error:
            return first_line(error)
        if known:
            take_random_state(state, self._world)
        saved.load_state_dict(state)
        buffers = without_buffers(path, {name for names in lacking for name in names})
        self.notes = (*self.notes, *left_out(path, kept, index), *buffers)
        return None

    def _claimed(self) -> None:
        """Hold the folder for this run, until this object is gone."""
        if self._lock is None:
            self._lock = lock_folder(make_folder(self._folder))
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

    def _every(self, own: T) -> list[T]:
        """What each rank gives, by rank, on every rank."""
        given = [own] * self._world.size
        dist.all_gather_object(given, own, group=self._readers())
        return given

    def _complete(
        self,
        writer: CheckpointWriter,
        parts: list[Written],
        partial: Path,
        final: Path,
        progress: Progress,
        tick: Tick,
    ) -> None:
        made = Marker(
            **progress.model_dump(), fingerprint=self._fingerprint, ranks=self._world.size,
            files=writer.conclude(parts),
        )  # fmt: skip
        complete(partial, final, made)
        remove_older(self._folder, self._keep, tick)

    def _readers(self) -> dist.ProcessGroup:
        """A group of all ranks that waits as long as reading may take."""
        if self._group is None:
            self._group = _group(READING_SECONDS)
        return self._group

    def _writers(self) -> tuple[Turns, dist.ProcessGroup]:
        """Turns for writing, and a group of all ranks for what takes no time."""
        if self._together is None:
            turns = Turns.agreed(self._world, self._patience, self.agree)
            self._together = turns, _group(self._patience)
        return self._together


def _group(seconds: float) -> dist.ProcessGroup:
    made = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    assert isinstance(made, dist.ProcessGroup)
    return made
