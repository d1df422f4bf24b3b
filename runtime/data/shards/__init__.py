"""Shards of samples: packed, indexed, read in a random order that any number of ranks resumes exactly.

A sample is files with one name up to the first dot, `train/0007.jpg` and `train/0007.cls`. A shard holds them in one of
the formats (`formats/`): POSIX tar as the `webdataset` library reads it too, Parquet, TFRecord. A folder of shards lies
on this machine or behind a URL (`folders/`); it has a manifest, `shards.json`, and tar and TFRecord shards an index
beside each. Without them the shards' own headers are read once.
"""

from placer.runtime.data.shards.loader import ShardLoader, ShardState
from placer.runtime.data.shards.packing import Packed, pack
from placer.runtime.data.shards.shard_set import ShardSet, is_shard_folder

__all__ = ["Packed", "ShardLoader", "ShardSet", "ShardState", "is_shard_folder", "pack"]
