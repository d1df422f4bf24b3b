"""How torch reads a checkpoint of placer's: the index as data, every file held to its checksums, no pickle run."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from placer.errors import PlacerError, UsageError
from placer.runtime.storage.checksums import Checksums, opened
from placer.runtime.storage.pickled import INDEX, index_of


class CheckpointReader(FileSystemReader):
    """Reads `folder`, whose files have these checksums; without any, as they lie there."""

    def __init__(self, folder: Path, sums: Mapping[str, Checksums] | None) -> None:
        super().__init__(folder)
        self.fs = _Verified(sums)
        self._folder = folder
        self._index: Metadata | None = None

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        """The index, of which torch's own reader would run what it names."""
        return self.read_index()

    def read_index(self) -> Metadata:
        """The same. Raises UsageError naming the file where it is no index, or another than was written."""
        if self._index is None:
            with self.fs.create_stream(self._folder / INDEX, "rb") as file:
                content = file.read()
            try:
                self._index = index_of(content)
            except UsageError as error:
                raise UsageError(f"{self._folder / INDEX}: {error}") from None
        return self._index


def first_line(error: BaseException) -> str:
    """The innermost reason in one line; torch wraps the errors of ranks in one of its own."""
    failures = getattr(error, "failures", None) or {}
    for rank, (inner, _) in failures.items():
        return f"rank {rank}: {first_line(inner)}"
    if isinstance(error, PlacerError):
        return str(error).split("\n")[0]
    if isinstance(error, pickle.UnpicklingError):  # torch's advice there is to run what it has just refused to
        return "a file of it holds something else than tensors, which has not been run"
    if isinstance(error, EOFError) and not str(error):
        return "a file of it ends too early"
    return f"{type(error).__name__}: {error}".split("\n")[0]


class _Verified(FileSystem):
    """Files that are read against their checksums."""

    def __init__(self, sums: Mapping[str, Checksums] | None) -> None:
        self._sums = sums

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """A file opened for reading."""
        if self._sums is None:
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        file = Path(path)
        if mode != "rb" or file.name not in self._sums:
            raise UsageError(f"{file.name} has no checksum in the checkpoint; copy all of it again")
        with io.BufferedReader(opened(file, self._sums[file.name])) as stream:
            yield stream
