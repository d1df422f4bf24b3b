"""What a folder of shards says of itself: `shards.json`, else the shards that lie in it, all of one format."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from placer.errors import UsageError
from placer.io.bounds import CountFromOne
from placer.io.refusals import refused
from placer.runtime.data.shards.folders import ShardFolder
from placer.runtime.data.shards.formats import FormatName, OpenShard, ShardFormat, format_of, shard_format

MANIFEST = "shards.json"


class ShardEntry(BaseModel):
    """A shard: its file, how many samples, how many bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    samples: CountFromOne
    bytes: CountFromOne


class Manifest(BaseModel):
    """The shards of a folder in order; `classes` are the names of the labels, in order of their numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: FormatName = "tar"
    shards: tuple[ShardEntry, ...]
    classes: tuple[str, ...] = ()


def read_manifest(folder: ShardFolder) -> Manifest:
    """The manifest of `folder`, or what its shards say where it has none.

    Raises UsageError where a shard is missing, has other bytes than when it was packed, or holds no samples.
    """
    sizes = folder.sizes()
    text = folder.text(MANIFEST, "the manifest of the shards") if MANIFEST in sizes else None
    if text is None:
        names = {name: format for name in sizes if (format := format_of(name))}
        formats = sorted(set(names.values()))
        if len(formats) > 1:
            raise UsageError(f"{folder.name} holds shards of {' and '.join(formats)}; give each format its own folder")
        if not formats:
            return Manifest(shards=())
        made = shard_format(formats[0])
        counts = {name: open_shard(folder, name, made).count for name in names}
        shards = (ShardEntry(name=name, samples=count, bytes=sizes[name]) for name, count in counts.items() if count)
        return Manifest(format=formats[0], shards=tuple(shards))
    path = f"{folder.name}/{MANIFEST}"
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(f"{path} is no manifest of shards: {refused(error)}; remove it, or pack again") from None
    for shard in manifest.shards:
        found = sizes.get(shard.name)
        if found != shard.bytes:
            state = "is missing" if found is None else f"has {found} bytes, not the {shard.bytes} that were packed"
            raise UsageError(f"{folder.name}/{shard.name} {state}; copy it again, pack again, or remove {MANIFEST}")
    return manifest


def open_shard(folder: ShardFolder, name: str, format: ShardFormat) -> OpenShard:
    """A shard, by its index where there is one."""
    index = folder.text(f"{name}{format.index}", "the index of a shard") if format.index else None
    return format.opened(folder.opened(name), index)
