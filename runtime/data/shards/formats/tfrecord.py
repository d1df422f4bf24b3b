"""TFRecord files: length (8 bytes), its masked CRC-32C (4), a tf.train.Example, its masked CRC-32C (4); and so on.

The index has a line "offset length" for each record, of all its bytes, as the `tfrecord` library and DALI take it;
without it the lengths are read once. Both CRCs are checked whenever a record is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from placer.errors import ExecutionError, UsageError
from placer.runtime.data.shards.folders import ShardFile
from placer.runtime.data.shards.folders.files import AHEAD
from placer.runtime.data.shards.formats.crc32c import masked_crc
from placer.runtime.data.shards.formats.example import decoded, encoded, room
from placer.runtime.data.shards.sample_files import Files

LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")
HEAD = LENGTH.size + CRC.size
FRAME = HEAD + CRC.size

Span = tuple[int, int]  # where a record begins, and all its bytes


class RecordFormat:
    """TFRecord, uncompressed."""

    suffix, index = ".tfrecord", ".index"

    def opened(self, file: ShardFile, index: str | None) -> RecordShard:
        """A shard by its index, else by its lengths. Raises UsageError for no TFRecord file, one cut off, no index."""
        if index is None:
            return RecordShard(file, scanned(file))
        try:
            spans = [(int(offset), int(size)) for offset, size in map(str.split, index.splitlines())]
        except ValueError:
            spans = [(-1, 0)]
        if any(offset < 0 or size < FRAME for offset, size in spans):
            raise UsageError(
                f"{file.name}{self.index} is no index of a shard: it needs lines of two numbers, where a record begins "
                "and its bytes; remove it"
            )
        end = max((offset + size for offset, size in spans), default=0)
        if end > file.size:
            raise UsageError(f"{file.name} is cut off: by its index its last record ends at byte {end}; copy it again")
        return RecordShard(file, spans)

    def index_of(self, file: ShardFile) -> str:
        """A line for each record."""
        return "".join(f"{offset} {size}\n" for offset, size in scanned(file))

    def overhead(self, columns: Sequence[str]) -> int:
        """A file without records is empty."""
        return 0

    def room(self, key: str, sizes: Sequence[tuple[str, int]], columns: Sequence[str]) -> int:
        """Its record."""
        return FRAME + room(key, sizes)

    def write(self, file: BinaryIO, samples: Iterable[tuple[str, Files]], columns: Sequence[str]) -> None:
        """A record for each sample."""
        for key, files in samples:
            content = encoded(key, files)
            length = LENGTH.pack(len(content))
            file.write(length + CRC.pack(masked_crc(length)))
            file.write(content)
            file.write(CRC.pack(masked_crc(content)))


class RecordShard:
    """The records of a TFRecord file."""

    def __init__(self, file: ShardFile, spans: Sequence[Span]) -> None:
        self._file, self._spans = file, spans

    @property
    def count(self) -> int:
        """How many records."""
        return len(self._spans)

    def key(self, number: int) -> str:
        """The name of a sample, or the number of its record."""
        name, _ = self._decoded(number)
        return f"record {number}" if name is None else name

    def read(self, number: int) -> Files:
        """The files of a record. Raises UsageError where a CRC is wrong, or it is no Example."""
        return self._decoded(number)[1]

    def read_ahead(self, number: int) -> None:
        """What lies around it, and the block after it."""
        offset, size = self._spans[number]
        self._file.ahead(offset, size + AHEAD)

    def _decoded(self, number: int) -> tuple[str | None, Files]:
        offset, size = self._spans[number]
        named = f"{self._file.name}: record {number}, at byte {offset},"
        self._file.ahead(offset, size)
        record = self._file.read(offset, size)
        if len(record) != size:
            raise ExecutionError(f"{named} is cut off; copy the file again")
        if _length(record[:HEAD]) != size - FRAME:
            raise UsageError(f"{named} has a wrong length; copy the file again, and remove its index if it is older")
        content = record[HEAD:-4]
        if CRC.unpack(record[-4:])[0] != masked_crc(content):
            raise UsageError(f"{named} has a wrong CRC; copy the file again")
        try:
            return decoded(content)
        except ValueError as error:
            raise UsageError(f"{named} is no tf.train.Example: {error}; write Examples") from None


def scanned(file: ShardFile) -> list[Span]:
    """Where the records lie, by their lengths. Raises UsageError for what is no TFRecord file, or cut off."""
    spans, at = list[Span](), 0
    while at < file.size:
        head = file.read(at, HEAD)
        length = _length(head)
        if length is None and len(head) == HEAD:
            why = f"the length at byte {at} has a wrong CRC"
            raise UsageError(f"{file.name} cannot be read as TFRecord: {why}; copy it again, or write it uncompressed")
        if length is None or at + FRAME + length > file.size:
            raise UsageError(f"{file.name} is cut off: the record at byte {at} has no end; copy it again")
        spans.append((at, FRAME + length))
        at += FRAME + length
    return spans


def _length(head: bytes) -> int | None:
    """The length that a record begins with; None where it is cut off or its CRC is wrong."""
    if len(head) < HEAD or CRC.unpack(head[LENGTH.size :])[0] != masked_crc(head[: LENGTH.size]):
        return None
    return int(LENGTH.unpack(head[: LENGTH.size])[0])
