"""Sharded tar files of samples: packed, indexed, read in a random order that any number of ranks resumes exactly.

A shard is a POSIX tar file as the `webdataset` library reads it too: the files of a sample follow each other and have
one name up to the first dot, `train/0007.jpg` and `train/0007.cls`. A folder of shards has a manifest, `shards.json`,
and beside each shard its index; without them the tar headers are read once.
"""

from placer.runtime.data.shards.loader import ShardLoader, ShardState
from placer.runtime.data.shards.packing import Packed, pack
from placer.runtime.data.shards.shard_set import ShardSet, is_shard_folder

__all__ = ["Packed", "ShardLoader", "ShardSet", "ShardState", "is_shard_folder", "pack"]
