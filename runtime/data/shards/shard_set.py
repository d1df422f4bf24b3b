"""A folder of shards, read sample by sample: `ShardSet(folder).read(place)` gives the files of the sample there."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from placer.errors import UsageError
from placer.runtime.data.shards.folders import ShardFolder, folder_of
from placer.runtime.data.shards.folders.local import LocalFolder
from placer.runtime.data.shards.formats import OpenShard, ShardFormat, format_of, shard_format
from placer.runtime.data.shards.manifest import MANIFEST, open_shard, read_manifest
from placer.runtime.data.shards.order import LANES, Place
from placer.runtime.data.shards.sample_files import Files

# Open shards and their indexes that are kept: a window and the next, which is read ahead, lie in one or two shards of
# each lane; an epoch opens each once.
KEPT = 2 * LANES


def is_shard_folder(source: Path | str) -> bool:
    """Whether a folder holds shards; URLs are of nothing else."""
    folder = folder_of(source)
    if not isinstance(folder, LocalFolder):
        return True
    path = folder.path  # names alone are asked for: it may hold a million files
    return path.is_dir() and (
        (path / MANIFEST).exists() or any(format_of(one.name) and one.is_file() for one in path.iterdir())
    )


class ShardSet:
    """The samples of a folder of shards. Raises UsageError where there are none, or they are not what was packed."""

    def __init__(self, folder: Path | str | ShardFolder) -> None:
        self.folder = folder_of(folder) if isinstance(folder, Path | str) else folder
        self.manifest = read_manifest(self.folder)
        if not self.manifest.shards:
            raise UsageError(f"{self.folder.name} holds no shards with samples; pack some with `placer data pack`")
        self.counts = tuple(one.samples for one in self.manifest.shards)
        self._begin()

    def __reduce__(self) -> tuple[type[ShardSet], tuple[ShardFolder]]:
        return ShardSet, (self.folder,)

    @property
    def kind(self) -> str:
        """The format, in words."""
        return f"{self.manifest.format} shards"

    def key(self, place: Place) -> str:
        """The name of a sample."""
        return self._shard(place.shard).key(place.number)

    def read(self, place: Place) -> Files:
        """The files of a sample. Raises UsageError or ExecutionError where they are not what was written."""
        return self._shard(place.shard).read(place.number)

    def read_ahead(self, place: Place) -> None:
        """Have the storage begin to read what lies around a sample and behind it, without waiting for it."""
        self._shard(place.shard).read_ahead(place.number)

    def drop(self, places: Sequence[Place]) -> None:
        """Have this machine forget what it keeps of these samples' shards."""
        self._begin()
        for shard in {place.shard for place in places}:
            self.folder.drop(self.manifest.shards[shard].name)

    def _begin(self) -> None:
        """Nothing open. Of this process: workers do not share the open files of their parent."""
        self._process = os.getpid()
        self._format: ShardFormat = shard_format(self.manifest.format)
        self._open: OrderedDict[int, OpenShard] = OrderedDict()

    def _shard(self, number: int) -> OpenShard:
        """An open shard; what was not asked for longest goes."""
        if self._process != os.getpid():
            self._begin()
        if number not in self._open:
            self._open[number] = self._checked(number)
            if len(self._open) > KEPT:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return self._open[number]

    def _checked(self, number: int) -> OpenShard:
        """A shard. Raises UsageError where it has other samples than the manifest says."""
        entry = self.manifest.shards[number]
        shard = open_shard(self.folder, entry.name, self._format)
        if shard.count != entry.samples:
            raise UsageError(
                f"{self.folder.name}/{entry.name}: its index has {shard.count} samples, {MANIFEST} says "
                f"{entry.samples}; pack again"
            )
        return shard
