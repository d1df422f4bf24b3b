"""Where shards lie: a folder of this machine (a mounted file system is one), or one behind a URL."""

from __future__ import annotations

from pathlib import Path

from placer.runtime.data.shards.folders.files import ShardFile, ShardFolder
from placer.runtime.data.shards.folders.local import LocalFolder
from placer.runtime.data.shards.folders.url import UrlFolder

__all__ = ["ShardFile", "ShardFolder", "folder_of", "is_url"]

LOCAL = "file://"


def is_url(source: Path | str) -> bool:
    """Whether `source` names a folder that fsspec reaches."""
    return isinstance(source, str) and "://" in source and not source.startswith(LOCAL)


def folder_of(source: Path | str) -> ShardFolder:
    """The folder that `source` names; whether it is there is known when it is read."""
    return UrlFolder(str(source)) if is_url(source) else LocalFolder(Path(str(source).removeprefix(LOCAL)))
