"""Files appear whole or not at all: written beside, then renamed. Pipes and devices are written through.

A path that is wrong is misuse (UsageError); a full or failing disk is a failure (PlacerError). Neither leaves a part.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path

from pydantic import JsonValue

from placer.errors import PlacerError, UsageError

STANDARD_OUTPUT = "-"
# What the disk is to blame for, rather than the path.
_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EPIPE)
_NEW_FILE_MODE = 0o644


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically; `-` is standard output. Raises UsageError where the folder is missing."""
    if str(path) == STANDARD_OUTPUT:
        print(text)
        return
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write `content` to `path`: a file atomically, behind its links; anything else (a pipe, a device) as it is."""
    require_writable(path)
    try:
        if _is_stream(path):
            with open(path, "wb", buffering=0) as stream:
                _write_all(stream.fileno(), content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise _cannot_write(path, error) from None


def require_writable(path: str | Path) -> None:
    """Raise UsageError where `path` names no file that can be written: asked before hours of work, not after them."""
    if str(path) == STANDARD_OUTPUT:
        return
    if not str(path):
        raise UsageError("cannot write a file without a name; name a file")
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder; name a file")
        if not target.parent.exists():
            raise UsageError(f"cannot write {path}: the folder {target.parent} does not exist; create it first")
        if not target.parent.is_dir():
            raise UsageError(f"cannot write {path}: {target.parent} is no folder; name another file")
        stream = _is_stream(path)
    except OSError as error:
        raise _cannot_write(path, error) from None
    where = path if stream else target.parent
    if not os.access(where, os.W_OK):
        raise UsageError(f"cannot write {path}: {_refusal(where)}; name another file")


def require_folder(path: str | Path) -> None:
    """Raise UsageError where `path` is no folder that files can be put in, nor one that can be made."""
    folder = Path(os.path.realpath(path))
    standing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not standing.is_dir():
        raise UsageError(f"cannot write into {path}: {standing} is a file; name a folder")
    if not os.access(standing, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write into {path}: {_refusal(standing)}; name another folder")


def _refusal(path: str | Path) -> str:
    """Why nothing is written there."""
    return "read-only file system" if os.statvfs(path).f_flag & os.ST_RDONLY else "permission denied"


def make_folder(path: str | Path) -> Path:
    """The folder `path`, made where it is missing. Raises UsageError where that cannot be."""
    require_folder(path)
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from None
    return Path(path)


def read_text(path: str | Path, what: str) -> str:
    """The text of `path`; `what` names it in the error, as in "the plan"."""
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        raise UsageError(f"{what} {path} does not exist; check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{what} {path} is a folder; name a file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{what} {path} cannot be read: {why}; check the path") from None


def parsed_json(text: str, what: str) -> JsonValue:
    """What `text` says. Raises UsageError that begins with `what` for no JSON, or one nested beyond all reason."""
    try:
        value: JsonValue = json.loads(text)
    except RecursionError:
        raise UsageError(f"{what}: its JSON is nested too deeply to be read; give the file that placer wrote") from None
    except ValueError as error:
        raise UsageError(f"{what}: no JSON ({error})") from None
    return value


def _is_stream(path: str | Path) -> bool:
    """Whether `path` is something other than a file: a pipe, a device, a standard stream by its name in /dev."""
    named = os.path.abspath(path)
    if named.startswith(("/dev/", "/proc/")) and os.path.exists(named):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _replace(target: Path, content: bytes) -> None:
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_FILE_MODE
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_all(handle: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def _cannot_write(path: str | Path, error: OSError) -> PlacerError:
    why = error.strerror or str(error)
    if error.errno in _FAILURES:
        return PlacerError(f"cannot write {path}: {why}; free space, or name another file")
    return UsageError(f"cannot write {path}: {why}; name another file")
