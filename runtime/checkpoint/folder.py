"""A folder of checkpoints: which are whole, which cannot be read, and what is done to the folder as a run goes on.

    FOLDER/step-00000100/            torch.distributed.checkpoint, keyed by the model's own names
    FOLDER/step-00000100/complete.json    written last: step, data position, the model's fingerprint, and the checksums
                                     of all other files; one that an older placer wrote has none
    FOLDER/.step-00000200.partial/   being written; renamed when all ranks are done, removed by the next run
    FOLDER/step-00000100.unreadable/ complete once, not readable later: kept, never loaded, never removed

FOLDER is locked while a run uses it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placer.errors import ExecutionError, UsageError
from placer.io.files import parsed_json, read_text, write_text
from placer.io.refusals import refused
from placer.plans.document import DIGEST, digest
from placer.runtime.distributed.progress import Tick
from placer.runtime.storage.checksums import Checksums, require_written
from placer.runtime.storage.pickled import INDEX
from placer.runtime.storage.reader import CheckpointReader, first_line

MARKER = "complete.json"
COMPLETE = re.compile(r"step-(\d{8,})$")
# Steps and batches are counted exactly in any number of 53 bits.
Count = Annotated[int, Field(ge=0, lt=2**53)]


class Progress(BaseModel):
    """How far a run has come: steps done, and the position of the next batch, of `rows` rows each (None: not said).

    seed, samples: what the order of the data follows from, its seed (None: not said) and how many rows it has (None:
    random batches). rate: the learning rate that its next step would have had (None: not said).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Count
    position: Count
    rows: Count | None = None
    seed: int | None = None
    samples: Count | None = None
    rate: float | None = None

    def at(self, rows: int) -> Progress:
        """The same rows read, in batches of another size. Raises UsageError where they are no whole number of them."""
        read = self.position * (rows if self.rows is None else self.rows)
        if read % rows:
            raise UsageError(
                f"the checkpoint has read {read} rows, in batches of {self.rows}, which is no whole number of batches "
                f"of {rows}: some would come twice. Go on with a batch whose rows divide {read}, or from the saved "
                "weights (--weights)"
            )
        return self.model_copy(update={"position": read // rows, "rows": rows})

    def in_another_order(self, *, seed: int, samples: int | None) -> tuple[str, ...]:
        """What to say where a run reads its data with another seed, or other data; nothing where it is the same."""
        if self.seed is None or (self.seed, self.samples) == (seed, samples):
            return ()
        before, now = (
            f"{'random batches' if count is None else f'{count} rows'} with seed {drawn}"
            for count, drawn in ((self.samples, self.seed), (samples, seed))
        )
        what = "rows of this epoch come again or are left out" if self.samples and samples else "other rows are read"
        return (f"the checkpoint's run read {before}; this one {now}: {what}",)

    def at_another_rate(self, rate: float) -> tuple[str, ...]:
        """What to say where a run goes on with another learning rate than the checkpoint's would have."""
        if self.rate is None or math.isclose(self.rate, rate, rel_tol=1e-9, abs_tol=1e-12):
            return ()
        return (
            f"at step {self.step} the checkpoint's run would have gone on with a learning rate of {self.rate:.3g}; "
            f"this one does with {rate:.3g}, which follows from its own --steps, --lr-schedule, --warmup-steps and "
            "--final-rate, and from the plan's rate",
        )


class Marker(Progress):
    """What complete.json says. files: the checksums of all others; None of a checkpoint that was written without."""

    fingerprint: str
    ranks: Annotated[int, Field(ge=1, lt=2**31)]
    schema_version: Literal[1] = 1
    files: dict[str, Checksums] | None = None


def latest(folder: str | Path) -> Path | None:
    """The last checkpoint in `folder` that is whole; None where there is none."""
    return next((path for path in candidates(Path(folder)) if unreadable(path) is None), None)


def candidates(folder: Path) -> list[Path]:
    """Every checkpoint of `folder` that was completed once, the last first, whether it can still be read or not."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if COMPLETE.match(path.name) and (path / MARKER).exists()]
    return sorted(named, key=lambda path: int(path.name.split("-")[1]), reverse=True)


def incomplete(folder: Path, than: int = -1) -> tuple[str, ...]:
    """What to say of the checkpoints of steps after `than` that lack their marker, and so are none.

    A run that is killed as it saves leaves none of them: those have another name until they have all.
    """
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    steps = ((path, COMPLETE.match(path.name)) for path in found if not (path / MARKER).exists())
    return tuple(
        f"the checkpoint {path} cannot be read: {MARKER} is missing (was it copied in part?); it is passed over"
        for path, named in steps
        if named and int(named[1]) > than
    )


def unreadable(path: Path) -> str | None:
    """Why `path` is no whole checkpoint; None where nothing shows before its tensors are read."""
    try:
        marker = read_marker(path)
        if marker.files is None:
            return _cut_short(path)
        wrong = (sums.wrong_size(path / name) for name, sums in marker.files.items())
        told = next(filter(None, wrong), None)
        if told is None:
            require_written(path / INDEX, marker.files)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, UsageError) as error:
        return first_line(error)
    return told


def _cut_short(path: Path) -> str | None:
    """The file of a checkpoint without checksums that is shorter than its index says."""
    ends: dict[str, int] = {}
    for piece in CheckpointReader(path, None).read_index().storage_data.values():
        ends[piece.relative_path] = max(ends.get(piece.relative_path, 0), piece.offset + piece.length)
    for name, end in ends.items():
        size = (path / name).stat().st_size
        if size < end:
            return f"{name} is cut short: {size} of {end} bytes"
    return None


def read_marker(path: Path) -> Marker:
    """What complete.json of a checkpoint says. Raises UsageError naming the field where it cannot be that."""
    document = parsed_json(read_text(path / MARKER, "the marker"), MARKER)
    known = document.pop(DIGEST, None) if isinstance(document, dict) else None
    try:
        marker = Marker.model_validate(document)
    except ValidationError as error:
        raise UsageError(f"{MARKER}: {refused(error)}") from None
    if known != (None if marker.files is None else digest(document)):
        raise UsageError(f"{MARKER} has been changed: it is not what was written, by its own digest")
    return marker


def reader_of(path: Path) -> CheckpointReader:
    """What reads the tensors of a whole checkpoint, against the checksums of its marker."""
    return CheckpointReader(path, read_marker(path).files)


def _marked(marker: Marker) -> str:
    """complete.json."""
    document = marker.model_dump(mode="json")
    return json.dumps({**document, DIGEST: digest(document)})


def without_checksums(path: Path) -> tuple[str, ...]:
    """What to say of a checkpoint whose files cannot be told from changed ones; nothing of others."""
    if read_marker(path).files is not None:
        return ()
    return (f"the checkpoint {path} was written without checksums: what disks or copying changed in it is not seen",)


def without_buffers(path: Path, lacking: Collection[str]) -> tuple[str, ...]:
    """What to say of a checkpoint that lacks these buffers, which the model's forward writes; nothing of none."""
    if not lacking:
        return ()
    return (
        f"the checkpoint {path} lacks the buffers {', '.join(sorted(lacking)[:3])}, which forward writes (an older "
        "placer left out those with persistent=False): they begin anew, and the run differs from one without a break",
    )


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


def empty(folder: Path, tick: Tick) -> None:
    """Remove all that `folder` holds. Raises ExecutionError."""
    try:
        for left in folder.iterdir():
            _remove(left, tick)
    except OSError as error:
        raise ExecutionError(failed_to_write(folder, error)) from error


def complete(partial: Path, final: Path, marker: Marker) -> None:
    """Make what was written to `partial` the checkpoint `final`."""
    write_text(partial / MARKER, _marked(marker))
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


def _sync(folder: Path) -> None:
    """Make renames and new files in `folder` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
