"""Checksums of files: CRC-32 (zlib) of every 4 MiB, so that whoever reads a part of a file need not read the rest.

They find what disks, networks and copying do to a file; who changes one on purpose can change its checksums too.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from placer.errors import UsageError
from placer.io.files import read_text, write_text
from placer.io.refusals import refused

# A terabyte has 250,000 of them, three megabytes of text; what is read again for a small tensor takes 2 ms.
BLOCK_BYTES = 4 * 2**20
# Of a folder of weights; a checkpoint has its own in complete.json.
NAME = "checksums.json"

Crc = Annotated[int, Field(ge=0, lt=2**32)]


class Checksums(BaseModel):
    """Of one file: its bytes, and the CRC-32 of each block of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    bytes: NonNegativeInt
    crc32: list[Crc]

    def wrong_size(self, path: Path) -> str | None:
        """Why `path` cannot be the file, by its size alone."""
        size = path.stat().st_size
        if size != self.bytes:
            return f"{path.name} is {'cut short' if size < self.bytes else 'too long'}: {size} of {self.bytes} bytes"
        return None


class Summed:
    """The checksums of what is told piece by piece."""

    def __init__(self) -> None:
        self._bytes, self._crc = 0, 0
        self._done: list[int] = []

    def add(self, data: memoryview) -> None:
        """The bytes that follow."""
        while data:
            piece = data[: BLOCK_BYTES - self._bytes % BLOCK_BYTES]
            self._crc = zlib.crc32(piece, self._crc)
            self._bytes += len(piece)
            if self._bytes % BLOCK_BYTES == 0:
                self._done.append(self._crc)
                self._crc = 0
            data = data[len(piece) :]

    def sums(self) -> Checksums:
        """Of all that was told."""
        return Checksums(bytes=self._bytes, crc32=[*self._done, *([self._crc] if self._bytes % BLOCK_BYTES else [])])


class VerifiedFile(io.RawIOBase):
    """A file that gives what was written, or raises UsageError naming the file and the bytes."""

    def __init__(self, path: Path, sums: Checksums) -> None:
        super().__init__()
        self._file, self._path, self._sums = path.open("rb", buffering=0), path, sums
        self._number, self._block = -1, b""
        self._known: set[int] = set()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """As in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As in the file."""
        return self._file.tell()

    def readinto(self, buffer: memoryview | bytearray) -> int:  # type: ignore[override]  # any writable memory
        """Fill `buffer` from the block at which the file is."""
        place = self.tell()
        if place >= self._sums.bytes:
            return 0
        self._hold(place // BLOCK_BYTES)
        start = place % BLOCK_BYTES
        piece = self._block[start : start + len(buffer)]
        buffer[: len(piece)] = piece
        self._file.seek(place + len(piece))
        return len(piece)

    def verify(self, start: int, end: int) -> None:
        """Read the blocks that hold those bytes, where that has not been done yet."""
        for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            if number not in self._known:
                self._hold(number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _hold(self, number: int) -> None:
        if number == self._number:
            return
        start = number * BLOCK_BYTES
        block = os.pread(self._file.fileno(), BLOCK_BYTES, start)
        if number >= len(self._sums.crc32) or zlib.crc32(block) != self._sums.crc32[number]:
            raise UsageError(
                f"{self._path.name} has been changed: bytes {start} to {start + len(block)} are not those that were "
                f"written, by their checksum; copy {self._path} again or take another"
            )
        self._number, self._block = number, block
        self._known.add(number)


def opened(path: Path, sums: Checksums) -> VerifiedFile:
    """`path` for reading. Raises UsageError where its size is another."""
    wrong = sums.wrong_size(path)
    if wrong:
        raise UsageError(f"{wrong}; copy {path} again or take another")
    return VerifiedFile(path, sums)


def require_written(path: Path, sums: Mapping[str, Checksums]) -> None:
    """Raise UsageError where `path` is another than was written, all of it."""
    if path.name not in sums:
        raise UsageError(f"{path.name} has no checksum among those of its folder; copy all of the folder again")
    with opened(path, sums[path.name]) as file:
        file.verify(0, sums[path.name].bytes)


def sums_of(path: Path) -> Checksums:
    """Of a file as it lies there."""
    summed = Summed()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            summed.add(memoryview(block))
    return summed.sums()


class _Listed(BaseModel):
    """What checksums.json says."""

    model_config = ConfigDict(extra="forbid")

    files: dict[str, Checksums]


def write_list(folder: Path) -> None:
    """Write checksums.json of all files in `folder`."""
    files = {path.name: sums_of(path) for path in sorted(folder.iterdir())}
    write_text(folder / NAME, _Listed(files=files).model_dump_json())


def read_list(folder: Path) -> Mapping[str, Checksums]:
    """The checksums of a folder's files; none without a checksums.json. Raises UsageError where that is damaged."""
    path = folder / NAME
    if not path.is_file():
        return {}
    try:
        return _Listed.model_validate_json(read_text(path, "the checksums")).files
    except ValidationError as error:
        raise UsageError(
            f"{path} holds no checksums: {refused(error)}; copy the folder again, or remove that file to read the "
            "others unchecked"
        ) from None
