"""Single files become shards: `pack(folder, into)` writes files of at most so many bytes, then their manifest.

Files of a sample lie beside each other in a folder and have one name up to the first dot; samples go into shards in
order of their names, whole. The same files give the same bytes. A shard appears under its name when it is
whole, the manifest when all are; the file `.packing` marks what was begun, so that a packing that was killed is begun
again over what it left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from placer.errors import PlacerError, UsageError
from placer.io.files import make_folder, write_text
from placer.runtime.data.shards.folders.local import LocalFile
from placer.runtime.data.shards.formats import FormatName, ShardFormat, shard_format
from placer.runtime.data.shards.manifest import MANIFEST, Manifest, ShardEntry
from placer.runtime.data.shards.sample_files import Files, split_name

# The member that holds the number of a class, as webdataset's own decoder reads it.
LABEL = "cls"
BEGUN = ".packing"
# Bytes that no shard has less of: a block of a tar file.
LEAST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What was packed: the folder, its samples, bytes of shards, and how many of them."""

    folder: Path
    samples: int
    bytes: int
    shards: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A sample among single files: its key, the files by their suffixes, and the number of its class."""

    key: str
    files: tuple[tuple[str, Path], ...]
    label: int | None

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """The bytes of each file, its label with them."""
        label = [] if self.label is None else [(LABEL, len(str(self.label)))]
        return [(suffix, path.stat().st_size) for suffix, path in self.files] + label

    def content(self) -> Files:
        """All its files."""
        label = {} if self.label is None else {LABEL: str(self.label).encode()}
        return {suffix: path.read_bytes() for suffix, path in self.files} | label


def pack(folder: Path, into: Path, *, shard_bytes: int, labels: bool = False, to: FormatName = "tar") -> Packed:
    """Pack the files of `folder` and its subfolders into shards of at most `shard_bytes` (more where one sample is).

    labels: each sample gets the number of the first subfolder it lies in, in order of their names.
    Raises UsageError where there are no samples, or `into` holds shards already.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give the folder that holds the files to pack")
    if into.resolve() == folder.resolve() or into.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{into} lies in {folder}, whose files are packed; give a folder elsewhere")
    if shard_bytes < LEAST:
        raise UsageError(f"shards of {shard_bytes} bytes hold nothing; give some MiB or more")
    format = shard_format(to)
    found, classes = _samples(folder, labels)
    columns = sorted({suffix for one in found for suffix, _ in one.sizes})
    _begin(into)
    shards = tuple(_Writer(format, into, columns).shards(found, shard_bytes))
    write_text(into / MANIFEST, Manifest(format=to, shards=shards, classes=classes).model_dump_json(indent=1))
    (into / BEGUN).unlink()
    return Packed(
        folder=into,
        samples=sum(one.samples for one in shards),
        bytes=sum(one.bytes for one in shards),
        shards=len(shards),
    )


def _begin(into: Path) -> None:
    """An empty folder, marked; what a killed packing left is removed. Raises UsageError where other files are."""
    make_folder(into)
    left = [one for one in into.iterdir() if one.name != BEGUN]
    if left and not (into / BEGUN).exists():
        what = "shards already" if (into / MANIFEST).exists() else "other files"
        raise UsageError(f"{into} holds {what}; give another folder, or remove them")
    write_text(into / BEGUN, "")
    for one in left:
        if one.name.startswith(("shard-", MANIFEST)):
            one.unlink()


def _samples(folder: Path, labels: bool) -> tuple[list[_Found], tuple[str, ...]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path.relative_to(folder)))
    if not paths:
        raise UsageError(f"{folder} holds no files to pack; give the folder that holds them")
    named = []
    for path in paths:
        key, suffix = split_name(path.relative_to(folder).as_posix())
        if not suffix:
            raise UsageError(f"{path} has no suffix that says what it is, as .jpg does; rename it, or take it away")
        named.append((key, suffix, path))
    classes = tuple(sorted({key.split("/")[0] for key, _, _ in named if "/" in key})) if labels else ()
    numbers = {name: number for number, name in enumerate(classes)}
    found = []
    for key, group in groupby(sorted(named), key=lambda entry: entry[0]):
        files = tuple((suffix, path) for _, suffix, path in group)
        if labels and key.split("/")[0] not in numbers:
            raise UsageError(f"{files[0][1]} lies in no subfolder, whose name would be its label; move it into one")
        if labels and any(suffix == LABEL for suffix, _ in files):
            raise UsageError(f"{key} has a label already, {key}.{LABEL}; pack without labels of folders")
        found.append(_Found(key, files, numbers[key.split("/")[0]] if labels else None))
    return found, classes


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


class _Writer:
    """Samples into shards of a format: `columns` are the suffixes of all files of the set."""

    def __init__(self, format: ShardFormat, into: Path, columns: Sequence[str]) -> None:
        self._format, self._into, self._columns = format, into, columns

    def shards(self, found: list[_Found], shard_bytes: int) -> Iterator[ShardEntry]:
        """The samples in their order, as many in a shard as fit."""
        empty = self._format.overhead(self._columns)
        group, held, number = list[_Found](), empty, 0
        for one in found:
            room = self._format.room(one.key, one.sizes, self._columns)
            if group and held + room > shard_bytes:
                yield self._written(group, number)
                group, held, number = [], empty, number + 1
            group.append(one)
            held += room
        yield self._written(group, number)

    def _written(self, group: list[_Found], number: int) -> ShardEntry:
        """A shard, whole or not at all, and its index. Raises PlacerError where the disk is full."""
        path = self._into / f"shard-{number:06d}{self._format.suffix}"
        part = path.with_name(f"{path.name}.part")
        try:
            with part.open("wb") as file:
                self._format.write(file, ((one.key, one.content()) for one in group), self._columns)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise PlacerError(f"cannot write {path}: {error.strerror}; make room, or give another folder") from None
        if self._format.index:
            write_text(path.with_name(f"{path.name}{self._format.index}"), self._format.index_of(LocalFile(path)))
        return ShardEntry(name=path.name, samples=len(group), bytes=path.stat().st_size)
