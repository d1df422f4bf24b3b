"""What a format asks of the place where its shards lie: names and sizes of files, and bytes at any offset."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Bytes that are asked for at once: a rotating disk of 8 ms and 200 MB/s then reaches 84% of its rate in sequence, and
# object stores advise ranges of 8 or 16 MB.
AHEAD = 8 * 2**20


class ShardFile(Protocol):
    """A file that is read at any place; `name` is its whole path, for messages."""

    @property
    def name(self) -> str:
        """The path or URL."""

    @property
    def size(self) -> int:
        """Bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from `offset` on, fewer where the file ends. Raises ExecutionError where it cannot be read."""

    def ahead(self, offset: int, size: int) -> None:
        """Say that what lies there and beyond it is wanted soon."""


class ShardFolder(Protocol):
    """A folder of files; `name` is its path, for messages."""

    @property
    def name(self) -> str:
        """The path or URL."""

    def sizes(self) -> Mapping[str, int]:
        """The bytes of each file by its name, in order of names. Raises UsageError where the folder is not there."""

    def text(self, name: str, what: str) -> str | None:
        """The text of a file, None where there is none; `what` names it in errors. Raises UsageError for no text."""

    def opened(self, name: str) -> ShardFile:
        """A file. Raises ExecutionError where it cannot be opened."""

    def drop(self, name: str) -> None:
        """Have this machine forget what it keeps of a file, so that it is read from the storage."""


class _Stream(io.RawIOBase):
    def __init__(self, file: ShardFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        content = self._file.read(self._at, len(view))
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


def stream(file: ShardFile) -> io.BufferedReader:
    """The file for libraries that read from one place on."""
    return io.BufferedReader(_Stream(file))
