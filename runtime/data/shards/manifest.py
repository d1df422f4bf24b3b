"""What a folder of shards says of itself: `shards.json`, and for each shard the places of its samples' files."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from placer.errors import UsageError
from placer.io.bounds import Count, CountFromOne
from placer.io.files import read_text, write_text
from placer.io.refusals import refused

MANIFEST = "shards.json"
SUFFIX = ".tar"


class ShardEntry(BaseModel):
    """A shard: its file, how many samples, how many bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    samples: CountFromOne
    bytes: CountFromOne


class Manifest(BaseModel):
    """The shards of a folder in order; `classes` are the names of the labels, in order of their numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: str = "tar"
    shards: tuple[ShardEntry, ...]
    classes: tuple[str, ...] = ()


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


def split_name(name: str) -> tuple[str, str]:
    """`a/b.seg.png` as `a/b` and `seg.png`; without a dot the second is empty."""
    folder, slash, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", suffix


def scanned(path: Path) -> tuple[Sample, ...]:
    """The samples of a tar file by its headers. Raises UsageError for what is no tar file, cut off, or compressed."""
    try:
        with tarfile.open(path, "r:") as tar:
            files = [member for member in tar if member.isfile()]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UsageError(f"{path} cannot be read as a tar file: {error}; pack it again, uncompressed") from None
    end = max((member.offset_data + member.size for member in files), default=0)
    if end > path.stat().st_size:
        raise UsageError(f"{path} is cut off: its last file ends at byte {end}; copy it again")
    named = [(split_name(one.name), one) for one in files if split_name(one.name)[1]]
    return tuple(
        Sample(key, tuple(Member(suffix, one.offset_data, one.size) for (_, suffix), one in group))
        for key, group in groupby(named, key=lambda entry: entry[0][0])
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, or what its tar files say where it has none.

    Raises UsageError where a shard is missing, has other bytes than when it was packed, or holds no samples.
    """
    path = folder / MANIFEST
    if not path.exists():
        names = sorted(one.name for one in folder.iterdir() if one.suffix == SUFFIX and one.is_file())
        counts = {name: len(scanned(folder / name)) for name in names}
        entries = (
            ShardEntry(name=name, samples=count, bytes=(folder / name).stat().st_size)
            for name, count in counts.items()
            if count
        )
        return Manifest(shards=tuple(entries))
    try:
        manifest = Manifest.model_validate_json(read_text(path, "the manifest of the shards"))
    except ValidationError as error:
        raise UsageError(f"{path} is no manifest of shards: {refused(error)}; remove it, or pack again") from None
    for shard in manifest.shards:
        file = folder / shard.name
        found = file.stat().st_size if file.is_file() and Path(shard.name).name == shard.name else None
        if found != shard.bytes:
            state = "is missing" if found is None else f"has {found} bytes, not the {shard.bytes} that were packed"
            raise UsageError(f"{file} {state}; copy it again, pack again, or remove {MANIFEST}")
    return manifest


def write_index(shard: Path, samples: tuple[Sample, ...]) -> None:
    """Write the index beside a shard, atomically."""
    write_text(_index(shard), INDEX.dump_json(samples).decode())


def read_index(shard: Path) -> tuple[Sample, ...]:
    """The samples of a shard: by its index, else by its headers."""
    if not _index(shard).exists():
        return scanned(shard)
    try:
        return INDEX.validate_json(read_text(_index(shard), "the index of a shard"))
    except ValidationError as error:
        raise UsageError(f"{_index(shard)} is no index of a shard: {refused(error)}; remove it") from None


def _index(shard: Path) -> Path:
    return shard.with_name(f"{shard.name}.index.json")
