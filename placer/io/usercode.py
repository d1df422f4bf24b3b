"""Code that people give: their factory, model, loss. Where it fails the error names their line, not one of placer's.

Code named by text, `package.module:name`, so that a plan can say which loss it was made with.
"""

from __future__ import annotations

import importlib
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

from placer.errors import PlacerError, UsageError
from placer.io.model_families import family_factory

# Nobody looks for a mistake of their own in these.
_FOREIGN = frozenset({"placer", "torch", *sys.stdlib_module_names})
_INSTALLED = ("/site-packages/", "/dist-packages/")
_LONGEST = 400
#: A library that is there and does not load, as torchvision that was built for another torch: nothing of the user's.
UNLOADED = "needs a library that does not load (`placer doctor` says which)"


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
        if isinstance(error, ImportError) and error.__cause__ is not None:
            raise UsageError(f"{what}{f' at {where}' if where else ''} {UNLOADED}: {said(error)}") from error
        raise UsageError(f"{what} raised {said(error)}{f' at {where}' if where else ''}; correct it there") from error


def said(error: BaseException) -> str:
    """`ValueError: what it says`, one line of it; of an import that failed for another's sake that one's too."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    told = f"{kind}: {first[:_LONGEST]}" if first else kind
    why = error.__cause__ if isinstance(error, ImportError) else None
    return told if why is None else f"{told}, since {said(why)}"


def source_line(error: BaseException, *, own: bool = False) -> str:
    """`file:line (code)` of the innermost frame that is neither torch's, Python's nor placer's, "" where none is.

    own: rather one outside installed libraries, where there is one: a mistake there shows only inside them.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno} ({(error.text or '').strip()})"
    frames = list(_frames(error))
    mine = [frame for frame in frames if not any(part in frame[0] for part in _INSTALLED)]
    for filename, line in reversed(mine if own and mine else frames):
        return line_text(filename, line)
    return ""


def line_text(filename: str, line: int) -> str:
    """`file:line (code)`."""
    return f"{filename}:{line} ({linecache.getline(filename, line).strip()})"


def calling_line() -> str:
    """`file:line (code)` of the innermost frame of other people's code that is running, "" where none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_users(frame):
        frame = frame.f_back
    return "" if frame is None else line_text(frame.f_code.co_filename, frame.f_lineno)


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """(file, line) of the frames of other people's code, outermost first; those of the cause last."""
    seen: BaseException | None = error
    while seen is not None:
        for frame, line in traceback.walk_tb(seen.__traceback__):
            if is_of_users(frame):
                yield frame.f_code.co_filename, line
        seen = seen.__cause__


def is_of_users(frame: FrameType | None) -> bool:
    """Whether a frame is of other people's code: neither torch's, Python's nor placer's."""
    if frame is None:
        return False
    module = str(frame.f_globals.get("__name__", ""))
    return name_of_users(module) and not frame.f_code.co_filename.startswith("<")


def name_of_users(module: str) -> bool:
    """Whether a module of this name is other people's: neither torch's, Python's nor placer's."""
    return module.split(".")[0] not in _FOREIGN


def is_own_module(name: str) -> bool:
    """Whether a module of this name is a person's own: neither torch's, Python's nor installed."""
    return _is_own(name, str(getattr(sys.modules.get(name), "__file__", None) or ""))


@cache  # of every module, several times an export
def _is_own(name: str, file: str) -> bool:
    return name_of_users(name) and not any(part in file for part in _INSTALLED)


_REFERENCE = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


def reference_of(function: Callable[..., object], what: str) -> str:
    """`package.module:name` of a function at the top of a module; UsageError for one that cannot be found again."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    reference = f"{module}:{name}"
    if module == "__main__" or not name.isidentifier() or named(reference, what) is not function:
        raise UsageError(
            f"{what} {name or function!r} of {module or 'no module'} cannot be found by the ranks that run the plan; "
            "define it with def at the top of an importable module"
        )
    return reference


def named(reference: str, what: str) -> Callable[..., object]:
    """The function `package.module:name`. Raises UsageError where it is not there, or its module does not import."""
    family = family_factory(reference)
    if family is not None:
        return family
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise UsageError(
            f"{what} {reference!r} is no reference; write package.module:function, as in examples.gpt:build "
            "(dots between folders, no .py)"
        )
    module, name = parts.groups()
    if "" not in sys.path:
        sys.path.insert(0, "")  # what a person names lies in the folder the command is run in
    with blamed(f"importing {what} {reference!r}"):
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            if not _names(error.name, module):
                raise
            raise UsageError(f"{what} {reference!r} cannot be imported: {error}; is {module} on the path?") from None
    if not callable(found):
        raise UsageError(f"{what} {reference!r} is not there: {module} has no function {name!r}")
    function: Callable[..., object] = found
    return function


def _names(missing: str | None, module: str) -> bool:
    """Whether the module that is missing is the one asked for, not one that it imports itself."""
    return missing is not None and (module == missing or module.startswith(f"{missing}."))
