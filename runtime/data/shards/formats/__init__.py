"""The formats of shards: how samples are written into a file and read from it, by the name of the format."""

from __future__ import annotations

import importlib
import re
from typing import Literal, cast, get_args

from placer.errors import require_extra
from placer.runtime.data.shards.formats.format import OpenShard, ShardFormat

__all__ = ["FORMATS", "FormatName", "OpenShard", "ShardFormat", "format_of", "shard_format"]

FormatName = Literal["tar", "parquet", "tfrecord"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
_CLASSES: dict[FormatName, str] = {
    "tar": "placer.runtime.data.shards.formats.tar:TarFormat",
    "parquet": "placer.runtime.data.shards.formats.parquet:ParquetFormat",
    "tfrecord": "placer.runtime.data.shards.formats.tfrecord:RecordFormat",
}
# Libraries that are no dependencies; all are of the extra `data`.
_LIBRARIES: dict[FormatName, str] = {"parquet": "pyarrow"}
# The names of files that others wrote in a format.
_NAMES: dict[FormatName, str] = {
    "tar": r".+\.tar",
    "parquet": r".+\.parquet",
    "tfrecord": r".+\.tfrecords?(-\d+-of-\d+)?",
}


def shard_format(name: FormatName) -> ShardFormat:
    """A format. Raises UsageError where its library is not installed."""
    if name in _LIBRARIES:
        require_extra("data", _LIBRARIES[name])
    module, _, entry = _CLASSES[name].partition(":")
    return cast(ShardFormat, getattr(importlib.import_module(module), entry)())


def format_of(file: str) -> FormatName | None:
    """The format of a file by its name, None where it is no shard."""
    return next((name for name, pattern in _NAMES.items() if re.fullmatch(pattern, file)), None)
