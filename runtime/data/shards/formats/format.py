"""What a format of shards gives: a shard open for reading, its index, and samples written into a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, Protocol

from placer.runtime.data.shards.folders import ShardFile
from placer.runtime.data.shards.sample_files import Files


class OpenShard(Protocol):
    """The samples of a shard."""

    @property
    def count(self) -> int:
        """How many."""

    def key(self, number: int) -> str:
        """The name of a sample, for messages."""

    def read(self, number: int) -> Files:
        """The files of a sample. Raises UsageError or ExecutionError where they are not what was written."""

    def read_ahead(self, number: int) -> None:
        """Have the storage begin to read what lies around a sample and behind it, without waiting for it."""


class ShardFormat(Protocol):
    """A format. `suffix`: of its files. `index`: what follows a shard's name in its index's, "" where it has none."""

    suffix: str
    index: str

    def opened(self, file: ShardFile, index: str | None) -> OpenShard:
        """A shard, by the text of its index where there is one. Raises UsageError for what is not of this format."""

    def index_of(self, file: ShardFile) -> str:
        """The text of the index of a shard, "" for none."""

    def overhead(self, columns: Sequence[str]) -> int:
        """Bytes of a shard without samples, at most; `columns` are the suffixes of all files of the set."""

    def room(self, key: str, sizes: Sequence[tuple[str, int]], columns: Sequence[str]) -> int:
        """Bytes, at most, that a sample adds to a shard: its name, and the suffix and bytes of each of its files."""

    def write(self, file: BinaryIO, samples: Iterable[tuple[str, Files]], columns: Sequence[str]) -> None:
        """Write samples, each with its name."""
