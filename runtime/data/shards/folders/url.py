"""A folder that fsspec reaches by its URL (s3://bucket/prefix): files are read in long ranges, kept on a local disk.

A sample of 100 kB by a request of its own waits some 20 ms for its first byte. So ranges of `BLOCK` bytes are fetched,
which hold what is read soon after, and all processes of this machine find them again (`blocks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING

from placer.errors import ExecutionError, UsageError, require_extra
from placer.runtime.data.shards.folders.blocks import BLOCK, BlockCache

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# What a store says of the state of a file, the first that it says; a file that was written anew is read anew.
VERSIONS = ("ETag", "etag", "generation", "LastModified", "mtime", "created")


class UrlFolder:
    """A folder behind a URL. It is not reached before something is asked of it."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._cache = BlockCache()

    def __reduce__(self) -> tuple[type[UrlFolder], tuple[str]]:
        return UrlFolder, (self.name,)

    @cached_property
    def _listed(self) -> Mapping[str, tuple[int, str]]:
        """Bytes and version of each file. Raises UsageError where the folder is not there or cannot be reached."""
        system, path = reached(self.name)
        try:
            system.invalidate_cache(path)
            entries = system.ls(path, detail=True)
        except FileNotFoundError:
            raise UsageError(f"{self.name} is not there: no such bucket or folder; check the URL") from None
        except Exception as error:  # each store has exceptions of its own
            raise UsageError(
                f"{self.name} cannot be listed: {said(error)}; check the URL, the credentials and the network"
            ) from None
        files = {PurePosixPath(entry["name"]).name: entry for entry in entries if entry["type"] == "file"}
        if [entry["name"].strip("/") for entry in files.values()] == [path.strip("/")]:
            raise UsageError(f"{self.name} is a file; give the folder that holds the shards")
        return {name: (int(entry["size"] or 0), _version(entry)) for name, entry in sorted(files.items())}

    def sizes(self) -> Mapping[str, int]:
        """The bytes of its files by their names. Raises UsageError where it is not there or cannot be reached."""
        return {name: size for name, (size, _) in self._listed.items()}

    def text(self, name: str, what: str) -> str | None:
        """The text of a file, None where there is none."""
        if name not in self._listed:
            return None
        file = self.opened(name)
        try:
            return file.read(0, file.size).decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{what} {file.name} cannot be read: {error}; check the file") from None

    def opened(self, name: str) -> UrlFile:
        """A file. Raises ExecutionError where there is none."""
        if name not in self._listed:
            raise ExecutionError(f"{self.name}/{name} is not there; copy it again")
        size, version = self._listed[name]
        return UrlFile(f"{self.name}/{name}", size, version, self._cache)

    def drop(self, name: str) -> None:
        """Forget what is kept of a file on this machine."""
        self._cache.drop(self.opened(name).key)


class UrlFile:
    """A file behind a URL."""

    def __init__(self, name: str, size: int, version: str, cache: BlockCache) -> None:
        self.name, self.size, self._cache = name, size, cache
        self.key = f"{name} {size} {version}"

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from `offset` on, fewer where the file ends. Raises ExecutionError where they cannot be fetched."""
        end = min(offset + size, self.size)
        parts = []
        for block in range(offset // BLOCK, -(-end // BLOCK)):
            begin = block * BLOCK
            within = max(0, offset - begin), min(end - begin, BLOCK)
            parts.append(self._cache.read(self.key, block, *within, partial(self._fetched, begin)))
        return b"".join(parts)

    def ahead(self, offset: int, size: int) -> None:
        """Blocks are long already."""

    def _fetched(self, begin: int) -> bytes:
        system, path = reached(self.name)
        end = min(begin + BLOCK, self.size)
        try:
            content = bytes(system.cat_file(path, start=begin, end=end))
        except Exception as error:  # each store has exceptions of its own
            raise ExecutionError(f"{self.name} cannot be read: {said(error)}; check the network, or copy it") from None
        if len(content) != end - begin:
            raise ExecutionError(f"{self.name} has changed while it is read; begin again")
        return content


def reached(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system and path of a URL, of this process: connections do not outlive a fork.

    Raises UsageError for a scheme that fsspec does not know, or whose library is not installed.
    """
    fsspec: ModuleType = require_extra("data", "fsspec.core")
    scheme = url.partition("://")[0]
    try:
        system, path = fsspec.url_to_fs(url)
    except ImportError as error:
        extra = "; pip install 'placer-planner[data]' brings that of s3://" if "s3" in scheme else ""
        raise UsageError(f"{url} needs a library that is not installed: {error}{extra}") from None
    except ValueError as error:
        raise UsageError(
            f"{url} cannot be opened: {error}; give a folder, or a URL that fsspec knows, such as s3://bucket/folder"
        ) from None
    return system, path


def said(error: Exception) -> str:
    """The first line of what a store said, with the kind of error where it says little."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _version(entry: Mapping[str, object]) -> str:
    return next((str(entry[name]) for name in VERSIONS if entry.get(name)), "")
