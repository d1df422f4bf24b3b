"""What a sample is: its files by what follows the first dot of their names; and what a set of samples gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from placer.runtime.data.shards.order import Place

# The content of a sample's files by what follows the first dot of their names.
Files = dict[str, bytes]
# How the suffix of an array ends whose format holds no shapes.
FLAT = ".flat.npy"


class SampleSet(Protocol):
    """Samples in shards: how many each has, and the files of one."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each shard."""

    def read(self, place: Place) -> Files:
        """The files of a sample."""

    def read_ahead(self, place: Place) -> None:
        """Begin to read what will be asked for a window of samples later, if that can be done without waiting."""


class StoredSet(SampleSet, Protocol):
    """Samples on a storage, which can be measured: `kind` says how they lie there, in words."""

    @property
    def kind(self) -> str:
        """Such as "tar shards"."""

    def drop(self, places: Sequence[Place]) -> None:
        """Have this machine forget what it keeps of these samples, so that they are read from the storage."""


def split_name(name: str) -> tuple[str, str]:
    """`a/b.seg.png` as `a/b` and `seg.png`; without a dot the second is empty."""
    folder, slash, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix
