"""Where shards lie: a folder of this machine (a mounted file system is one)."""

from __future__ import annotations

from pathlib import Path

from placer.runtime.data.shards.folders.files import ShardFile, ShardFolder
from placer.runtime.data.shards.folders.local import LocalFolder

__all__ = ["ShardFile", "ShardFolder", "folder_of"]


def folder_of(source: Path | str) -> ShardFolder:
    """The folder that `source` names; whether it is there is known when it is read."""
    return LocalFolder(Path(source))
