"""Blocks of files that lie far away, kept on a local disk for all processes of this machine.

    FOLDER/<file>/<number>    a block whole, written beside and renamed; <file>: a digest of its URL, size and version

No more than `MOST` bytes are kept, nor more than half of what the disk has free: what was fetched first goes first. A
disk that is full, or a folder that cannot be written, keeps nothing; reading goes on from afar.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from placer.io.cache import cache_folder
from placer.runtime.data.shards.folders.files import AHEAD

# Of what is fetched at once, bytes.
BLOCK = AHEAD
# A window of 1,024 images of 110 kB in each of 64 lanes is 7 GB; this holds two.
MOST = 16 * 2**30
# Blocks that are written between two looks at how many are kept.
EVERY = 64


class BlockCache:
    """Blocks by the key of their file and their number. The folder is made when the first block is kept."""

    def __init__(self, folder: Path | None = None, most: int = MOST) -> None:
        self._folder = folder or cache_folder() / "shards"
        self._most = most
        self._written = 0

    def read(self, key: str, block: int, begin: int, end: int, fetch: Callable[[], bytes]) -> bytes:
        """Bytes `begin` to `end` of a block, which `fetch` gives where it is not kept."""
        path = self._of(key) / str(block)
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            handle = None
        if handle is not None:
            try:
                content = os.pread(handle, end - begin, begin)
            finally:
                os.close(handle)
            if len(content) == end - begin:  # else the machine went down while it was written
                return content
        content = fetch()
        self._keep(path, content)
        return content[begin:end]

    def drop(self, key: str) -> None:
        """Forget a file."""
        shutil.rmtree(self._of(key), ignore_errors=True)

    def _of(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:32]

    def _keep(self, path: Path, content: bytes) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._written % EVERY == 0:
                self._trim()
            self._written += 1
            part.write_bytes(content)
            os.replace(part, path)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _trim(self) -> None:
        """Remove what was fetched first, until there is room for what is written before the next look."""
        kept = sorted((found.st_mtime, found.st_size, path) for path, found in _files(self._folder))
        held = sum(size for _, size, _ in kept)
        most = min(self._most, (held + shutil.disk_usage(self._folder).free) // 2)
        for _, size, path in kept:
            if held + EVERY * BLOCK <= most:
                return
            path.unlink(missing_ok=True)
            held -= size


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """The blocks that are there; another process may remove them meanwhile."""
    found = []
    for path in folder.glob("*/*"):
        try:
            found.append((path, path.stat()))
        except FileNotFoundError:
            continue
    return found
