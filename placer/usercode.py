"""Code that people give: their factory, model, loss. Where it fails the error names their line, not one of placer's."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from placer.errors import PlacerError, UsageError

# Nobody looks for a mistake of their own in these.
_FOREIGN = frozenset({"placer", "torch", *sys.stdlib_module_names})
_INSTALLED = ("/site-packages/", "/dist-packages/")
_LONGEST = 400


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Around a call of a person's code, `what` in words. Whatever it raises becomes a UsageError that names its line.

    SystemExit too: a factory that ends the process would end placer without a word, and with its exit code.
    """
    try:
        yield
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        where = source_line(error, own=True)
        raise UsageError(f"{what} raised {said(error)}{f' at {where}' if where else ''}; correct it there") from error


def said(error: BaseException) -> str:
    """`ValueError: what it says`, one line of it."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    return f"{kind}: {first[:_LONGEST]}" if first else kind


def source_line(error: BaseException, *, own: bool = False) -> str:
    """`file:line (code)` of the innermost frame that is neither torch's, Python's nor placer's, "" where none is.

    own: rather one outside installed libraries, where there is one: a mistake there shows only inside them.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno} ({(error.text or '').strip()})"
    frames = list(_frames(error))
    mine = [frame for frame in frames if not any(part in frame[0] for part in _INSTALLED)]
    for filename, line in reversed(mine if own and mine else frames):
        return f"{filename}:{line} ({linecache.getline(filename, line).strip()})"
    return ""


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """(file, line) of the frames of other people's code, outermost first; those of the cause last."""
    seen: BaseException | None = error
    while seen is not None:
        for frame, line in traceback.walk_tb(seen.__traceback__):
            if _is_users(frame):
                yield frame.f_code.co_filename, line
        seen = seen.__cause__


def _is_users(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.split(".")[0] not in _FOREIGN and not frame.f_code.co_filename.startswith("<")
