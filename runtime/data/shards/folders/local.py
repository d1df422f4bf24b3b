"""A folder of this machine, read by positions; blocks around what is read are announced to the kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from placer.errors import ExecutionError, UsageError
from placer.io.files import read_text
from placer.runtime.data.shards.folders.files import AHEAD

# Blocks of a file that are remembered as read ahead; they may have left the page cache when as many others have come.
MOST_ANNOUNCED = 32


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[type[LocalFolder], tuple[Path]]:
        return LocalFolder, (self.path.resolve(),)

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    def sizes(self) -> Mapping[str, int]:
        """The bytes of its files by their names. Raises UsageError where it is no folder."""
        if not self.path.is_dir():
            raise UsageError(f"{self.path} is no folder; give the folder that holds the files or shards")
        return {path.name: path.stat().st_size for path in sorted(self.path.iterdir()) if path.is_file()}

    def text(self, name: str, what: str) -> str | None:
        """The text of a file, None where there is none."""
        path = self.path / name
        return read_text(path, what) if path.exists() else None

    def opened(self, name: str) -> LocalFile:
        """A file, open."""
        return LocalFile(self.path / name)

    def drop(self, name: str) -> None:
        """Have the kernel forget the pages of a file."""
        drop_pages(self.path / name)


class LocalFile:
    """An open file that is closed when nothing refers to it. Raises ExecutionError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._announced: set[int] = set()
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ExecutionError(f"cannot read {path}: {error.strerror}") from None
        self.size = os.fstat(self._handle).st_size

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            with suppress(OSError):  # of a network mount that is gone; nothing was written
                os.close(self._handle)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from `offset` on, fewer where the file ends."""
        try:
            return os.pread(self._handle, size, offset)
        except OSError as error:
            raise ExecutionError(f"cannot read {self.name}: {error.strerror}") from None

    def ahead(self, offset: int, size: int) -> None:
        """Have the blocks around these bytes read ahead, each once, so that disks and servers see long requests."""
        for block in range(offset // AHEAD, (offset + size) // AHEAD + 1):
            if block not in self._announced:
                if len(self._announced) >= MOST_ANNOUNCED:
                    self._announced.clear()
                self._announced.add(block)
                os.posix_fadvise(self._handle, block * AHEAD, AHEAD, os.POSIX_FADV_WILLNEED)


def drop_pages(path: Path) -> None:
    """Have the kernel forget the pages of a file, so that it is read from the storage."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(handle)  # pages that are not written yet are not forgotten
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
