"""A folder of shards, read sample by sample at known places: `TarSet(folder).read(place)` gives the sample's files."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from placer.errors import ExecutionError, UsageError
from placer.runtime.data.shards.manifest import MANIFEST, SUFFIX, Member, Sample, read_index, read_manifest
from placer.runtime.data.shards.order import LANES, Place

Kept = TypeVar("Kept")
# The content of a sample's files by what follows the first dot of their names.
Files = dict[str, bytes]
# Indexes and open files of shards that are kept: a window and the next, which is read ahead, lie in one or two shards
# of each lane; an epoch opens each once.
KEPT = 2 * LANES
# Bytes that are read ahead at once: a rotating disk of 8 ms and 200 MB/s then reaches 84% of its rate in sequence, and
# object stores advise ranges of 8 or 16 MB.
BLOCK = 8 * 2**20
# Blocks that are remembered as read ahead; they may have left the page cache when as many others have come.
MOST_ANNOUNCED = 1024


def is_tar_folder(folder: Path) -> bool:
    """Whether `folder` holds shards."""
    return folder.is_dir() and (
        (folder / MANIFEST).exists() or any(one.suffix == SUFFIX and one.is_file() for one in folder.iterdir())
    )


class TarSet:
    """The samples of a folder of shards. Raises UsageError where there are none, or they are not what was packed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        if not self.manifest.shards:
            raise UsageError(f"{folder} holds no shards with samples; pack some with `placer data pack`")
        self.counts = tuple(one.samples for one in self.manifest.shards)
        self._indexes: OrderedDict[int, tuple[Sample, ...]] = OrderedDict()
        self._files: OrderedDict[int, _File] = OrderedDict()
        self._announced: set[tuple[int, int]] = set()
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[TarSet], tuple[Path]]:
        return TarSet, (self.folder.resolve(),)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(one.bytes for one in self.manifest.shards)

    def sample(self, place: Place) -> Sample:
        """What lies there. Raises UsageError where the index has fewer samples than the manifest."""
        path = self.path(place.shard)
        samples = _kept(self._indexes, place.shard, lambda: read_index(path))
        if len(samples) != self.counts[place.shard]:
            raise UsageError(
                f"{path}: its index has {len(samples)} samples, {MANIFEST} says {self.counts[place.shard]}; pack again"
            )
        return samples[place.number]

    def path(self, shard: int) -> Path:
        """The file of a shard."""
        return self.folder / self.manifest.shards[shard].name

    def read(self, place: Place) -> Files:
        """The files of a sample by what follows the first dot of their names.

        Raises ExecutionError where the shard ends within one.
        """
        path = self.path(place.shard)
        handle = self._opened(place.shard)
        found: Files = {}
        for member in self.sample(place).members:
            self._announce(place.shard, handle, _blocks(member))
            content = os.pread(handle, member.size, member.offset)
            if len(content) != member.size:
                raise ExecutionError(f"{path} ends within {self.sample(place).key}.{member.suffix}; copy it again")
            found[member.suffix] = content
        return found

    def read_ahead(self, place: Place) -> None:
        """Have the storage begin to read what lies around a sample and the block after it, without waiting for it."""
        handle = self._opened(place.shard)
        for member in self.sample(place).members:
            blocks = _blocks(member)
            self._announce(place.shard, handle, range(blocks.start, blocks.stop + 1))

    def _opened(self, shard: int) -> int:
        """The open file of a shard, of this process: workers do not share the fate of their parent's."""
        if self._process != os.getpid():
            self._files, self._announced, self._process = OrderedDict(), set(), os.getpid()
        return _kept(self._files, shard, lambda: _File(self.path(shard))).handle

    def _announce(self, shard: int, handle: int, blocks: range) -> None:
        """Have blocks of a shard read ahead, each once, so that disks and servers see long requests."""
        for block in blocks:
            if (shard, block) not in self._announced:
                if len(self._announced) >= MOST_ANNOUNCED:
                    self._announced.clear()
                self._announced.add((shard, block))
                os.posix_fadvise(handle, block * BLOCK, BLOCK, os.POSIX_FADV_WILLNEED)


class _File:
    """An open file that is closed when it is dropped from the cache."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ExecutionError(f"cannot read {path}: {error.strerror}") from None

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


def _blocks(member: Member) -> range:
    return range(member.offset // BLOCK, (member.offset + member.size) // BLOCK + 1)


def _kept(cache: OrderedDict[int, Kept], key: int, make: Callable[[], Kept]) -> Kept:
    """What is kept under `key`, made where it is not; what was not asked for longest goes."""
    if key not in cache:
        cache[key] = make()
        if len(cache) > KEPT:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]
