"""Files appear whole or not at all: written beside, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from placer.errors import UsageError


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically; `-` is standard output. Raises UsageError where the folder is missing."""
    if str(path) == "-":
        print(text)
        return
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write `content` to `path` atomically."""
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {target}: the folder {target.parent} does not exist; create it first")
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder; name a file")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_text(path: str | Path, what: str) -> str:
    """The text of `path`; `what` names it in the error, as in "the plan"."""
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        raise UsageError(f"{what} {path} does not exist; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} {path} cannot be read: {error}") from None
