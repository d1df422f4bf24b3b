"""POSIX tar files: the files of a sample follow each other and have one name up to the first dot.

The index holds the places of all files; without it the headers are read once.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from placer.errors import ExecutionError, UsageError
from placer.io.bounds import Count
from placer.io.refusals import refused
from placer.runtime.data.shards.folders import ShardFile
from placer.runtime.data.shards.folders.files import AHEAD, stream
from placer.runtime.data.shards.sample_files import Files, split_name

BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a sample: what follows the first dot of its name, where in the shard its bytes are, how many."""

    suffix: str
    offset: Count
    size: Count


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample: its name up to the first dot, and its files."""

    key: str
    members: tuple[Member, ...]


INDEX = TypeAdapter(tuple[Sample, ...])


class TarFormat:
    """Uncompressed tar files, with indexes in JSON."""

    suffix, index = ".tar", ".index.json"

    def opened(self, file: ShardFile, index: str | None) -> TarShard:
        """A shard by its index, else by its headers. Raises UsageError for what is no tar file, or no index."""
        if index is None:
            return TarShard(file, scanned(file))
        try:
            return TarShard(file, INDEX.validate_json(index))
        except ValidationError as error:
            raise UsageError(f"{file.name}{self.index} is no index of a shard: {refused(error)}; remove it") from None

    def index_of(self, file: ShardFile) -> str:
        """The places of all files, in JSON."""
        return INDEX.dump_json(scanned(file)).decode()

    def overhead(self, columns: Sequence[str]) -> int:
        """Two empty blocks end a tar file."""
        return 2 * BLOCK

    def room(self, key: str, sizes: Sequence[tuple[str, int]], columns: Sequence[str]) -> int:
        """Headers and padding with it."""
        return sum(BLOCK + -(-size // BLOCK) * BLOCK for _, size in sizes)

    def write(self, file: BinaryIO, samples: Iterable[tuple[str, Files]], columns: Sequence[str]) -> None:
        """The same files give the same bytes: owner, mode and time are left out."""
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for key, files in samples:
                for suffix, content in files.items():
                    entry = tarfile.TarInfo(f"{key}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


class TarShard:
    """The samples of a tar file."""

    def __init__(self, file: ShardFile, samples: tuple[Sample, ...]) -> None:
        self._file, self._samples = file, samples

    @property
    def count(self) -> int:
        """How many samples."""
        return len(self._samples)

    def key(self, number: int) -> str:
        """What its files are called up to the first dot."""
        return self._samples[number].key

    def read_ahead(self, number: int) -> None:
        """What lies around its files, and the block after them."""
        for member in self._samples[number].members:
            self._file.ahead(member.offset, member.size + AHEAD)

    def read(self, number: int) -> Files:
        """The files of a sample. Raises ExecutionError where the shard ends within one."""
        sample, found = self._samples[number], Files()
        for member in sample.members:
            self._file.ahead(member.offset, member.size)
            content = self._file.read(member.offset, member.size)
            if len(content) != member.size:
                raise ExecutionError(f"{self._file.name} ends within {sample.key}.{member.suffix}; copy it again")
            found[member.suffix] = content
        return found


def scanned(file: ShardFile) -> tuple[Sample, ...]:
    """The samples of a tar file by its headers. Raises UsageError for what is no tar file, cut off, or compressed."""
    try:
        with tarfile.open(fileobj=stream(file), mode="r:") as tar:
            files = [member for member in tar if member.isfile()]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UsageError(f"{file.name} cannot be read as a tar file: {error}; pack it again, uncompressed") from None
    end = max((member.offset_data + member.size for member in files), default=0)
    if end > file.size:
        raise UsageError(f"{file.name} is cut off: its last file ends at byte {end}; copy it again")
    named = [(split_name(one.name), one) for one in files if split_name(one.name)[1]]
    return tuple(
        Sample(key, tuple(Member(suffix, one.offset_data, one.size) for (_, suffix), one in group))
        for key, group in groupby(named, key=lambda entry: entry[0][0])
    )
