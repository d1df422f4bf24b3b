"""Single files become shards: `pack(folder, into)` writes tar files of about so many bytes, then their manifest.

Files of a sample lie beside each other in a folder and have one name up to the first dot; samples go into shards in
order of their names, whole. The same files give the same bytes: owner, mode and time are left out. A shard appears
under its name when it is whole, the manifest when all are; the file `.packing` marks what was begun, so that a packing
that was killed is begun again over what it left.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from placer.errors import PlacerError, UsageError
from placer.io.files import make_folder, write_text
from placer.runtime.data.shards.manifest import MANIFEST, Manifest, ShardEntry, scanned, split_name, write_index

BLOCK = tarfile.BLOCKSIZE
# The member that holds the number of a class, as webdataset's own decoder reads it.
LABEL = "cls"
BEGUN = ".packing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What was packed: the folder, its samples, bytes of shards, and how many of them."""

    folder: Path
    samples: int
    bytes: int
    shards: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A sample among single files: its key, the files, and the number of its class."""

    key: str
    files: tuple[tuple[str, Path], ...]
    label: int | None

    @property
    def size(self) -> int:
        """Bytes it takes in a tar file, headers and padding with it."""
        sizes = [path.stat().st_size for _, path in self.files] + [1] * (self.label is not None)
        return sum(BLOCK + -(-size // BLOCK) * BLOCK for size in sizes)


def pack(folder: Path, into: Path, *, shard_bytes: int, labels: bool = False) -> Packed:
    """Pack the files of `folder` and its subfolders into shards of at most `shard_bytes` (more where one sample is).

    labels: each sample gets the number of the first subfolder it lies in, in order of their names.
    Raises UsageError where there are no samples, or `into` holds shards already.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give the folder that holds the files to pack")
    if into.resolve() == folder.resolve() or into.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{into} lies in {folder}, whose files are packed; give a folder elsewhere")
    if shard_bytes < BLOCK:
        raise UsageError(f"shards of {shard_bytes} bytes hold nothing; give some MiB or more")
    found, classes = _samples(folder, labels)
    _begin(into)
    shards = tuple(_shards(found, into, shard_bytes))
    write_text(into / MANIFEST, Manifest(shards=shards, classes=classes).model_dump_json(indent=1))
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
        files = tuple((f"{key}.{suffix}", path) for _, suffix, path in group)
        if labels and key.split("/")[0] not in numbers:
            raise UsageError(f"{files[0][1]} lies in no subfolder, whose name would be its label; move it into one")
        if labels and any(name == f"{key}.{LABEL}" for name, _ in files):
            raise UsageError(f"{key} has a label already, {key}.{LABEL}; pack without labels of folders")
        found.append(_Found(key, files, numbers[key.split("/")[0]] if labels else None))
    return found, classes


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _shards(found: list[_Found], into: Path, shard_bytes: int) -> Iterator[ShardEntry]:
    end, group, held = 2 * BLOCK, list[_Found](), 0
    number = 0
    for one in found:
        if group and held + one.size + end > shard_bytes:
            yield _written(group, into / f"shard-{number:06d}.tar")
            group, held, number = [], 0, number + 1
        group.append(one)
        held += one.size
    yield _written(group, into / f"shard-{number:06d}.tar")


def _written(group: list[_Found], path: Path) -> ShardEntry:
    """A shard, whole or not at all, and its index. Raises PlacerError where the disk is full."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for sample in group:
                    for name, source in sample.files:
                        _add(tar, name, source.read_bytes())
                    if sample.label is not None:
                        _add(tar, f"{sample.key}.{LABEL}", str(sample.label).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PlacerError(f"cannot write {path}: {error.strerror}; make room, or give another folder") from None
    samples = scanned(path)
    write_index(path, samples)
    return ShardEntry(name=path.name, samples=len(samples), bytes=path.stat().st_size)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
