"""Single files as samples, read one by one: what shards are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from placer.errors import ExecutionError, UsageError
from placer.runtime.data.shards.folders.local import drop_pages
from placer.runtime.data.shards.order import Place
from placer.runtime.data.shards.sample_files import Files, split_name


class SingleFiles:
    """The samples of a folder of files, each a shard of its own. Raises UsageError where there are none."""

    kind = "single files"

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder; give the folder that holds the files or shards")
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and split_name(path.name)[1])
        visible = [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
        named = sorted((*split_name(path.relative_to(folder).as_posix()), path) for path in visible)
        self._samples = tuple(
            tuple((suffix, path) for _, suffix, path in group) for _, group in groupby(named, key=lambda one: one[0])
        )
        if not self._samples:
            raise UsageError(f"{folder} holds no files with a suffix; give the folder that holds the files or shards")
        self.counts = (1,) * len(self._samples)

    def read_ahead(self, place: Place) -> None:
        """Nothing: each file is asked for when it is needed, as loaders of single files do."""

    def read(self, place: Place) -> Files:
        """The files of a sample. Raises ExecutionError where one cannot be read."""
        try:
            return {suffix: path.read_bytes() for suffix, path in self._samples[place.shard]}
        except OSError as error:
            raise ExecutionError(f"cannot read {error.filename}: {error.strerror}") from None

    def drop(self, places: Sequence[Place]) -> None:
        """Have the kernel forget the pages of these samples' files."""
        for path in {path for place in places for _, path in self._samples[place.shard]}:
            drop_pages(path)
