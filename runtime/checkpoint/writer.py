"""A checkpoint written file by file, in pieces that are on disk before the next: each piece is progress.

torch.distributed.checkpoint plans what each rank writes (`save`, which here writes nothing); then each rank writes its
part (`write`), and the first one what all parts are (`conclude`). No rank waits in a collective for another's disk.
Checksums are of what was to be written, taken on the way, so that what the disk made of it can be told from it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from placer.runtime.storage.checksums import Checksums, Summed

# What a disk must take within a rank's patience to count as slow and not as hung: at 60 s, 0.3 MB/s.
PIECE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A rank's part: what torch says of it, and the checksums of its files by name."""

    results: list[WriteResult]
    files: dict[str, Checksums]


class CheckpointWriter(FileSystemWriter):
    """Writes to `folder`, telling `tick` of every piece that is on disk."""

    def __init__(self, folder: Path, tick: Callable[[], None]) -> None:
        super().__init__(folder, sync_files=True)
        self.fs = self._files = _Pieces(tick)
        self._asked: tuple[SavePlan, SavePlanner] | None = None
        self._metadata: Metadata | None = None

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Keep what is to be written."""
        self._asked = plan, planner
        nothing: Future[list[WriteResult]] = Future()
        nothing.set_result([])
        return nothing

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Keep what the parts are."""
        self._metadata = metadata

    def write(self) -> Written:
        """Write this rank's part. Raises what a piece could not be written for: OSError, or what ended the rank."""
        assert self._asked is not None
        try:
            results = super().write_data(*self._asked).wait()
        except RuntimeError as error:
            if self._files.failed is None:
                raise
            # torch's archive only says that it is not as long as it should be ("unexpected pos 704 vs 598", 2.13)
            raise self._files.failed from error
        return Written(results=results, files=self._files.sums())

    def conclude(self, parts: Sequence[Written]) -> dict[str, Checksums]:
        """Write what the parts of all ranks are; the first rank does. The checksums of all files."""
        assert self._metadata is not None
        super().finish(self._metadata, [part.results for part in parts])
        return {
            name: sums
            for part in (Written(results=[], files=self._files.sums()), *parts)
            for name, sums in part.files.items()
        }


class _Pieces(FileSystem):
    """Files that are written in pieces. failed: what was raised where one could not be: by the disk, by `tick`, or by
    the handler of a signal that came meanwhile."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self.failed: BaseException | None = None
        self._written: dict[str, Summed] = {}

    def sums(self) -> dict[str, Checksums]:
        """Of what has been written, by the names that it has now."""
        return {name: summed.sums() for name, summed in self._written.items()}

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """The index is written beside, then renamed."""
        super().rename(path, new_path)
        self._written[Path(new_path).name] = self._written.pop(Path(path).name)

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A file opened for writing, or as ever for reading."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        summed = self._written[Path(path).name] = Summed()
        with _File(io.FileIO(path, "wb"), self._tick, summed, self._fail) as file:
            yield file

    def _fail(self, error: BaseException) -> None:
        self.failed = self.failed or error


class _File(io.BufferedWriter):
    """A file whose pieces are on disk before more is taken."""

    def __init__(
        self, raw: io.FileIO, tick: Callable[[], None], summed: Summed, fail: Callable[[BaseException], None]
    ) -> None:
        super().__init__(raw)
        self._tick, self._pending, self._summed, self._fail = tick, 0, summed, fail

    def write(self, data: object) -> int:
        """Write all of `data`. What it raises callers in C++ lose."""
        try:
            return self._write(data)
        except BaseException as error:
            self._fail(error)
            raise

    def _write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # whatever has bytes
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            super().write(piece)
            self._summed.add(piece)
            self._pending += len(piece)
            if self._pending >= PIECE_BYTES:
                self.flush()
                os.fdatasync(self.fileno())
                self._pending = 0
            self._tick()
        return len(view)
