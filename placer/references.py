"""Code named by text, `package.module:name`, so that a plan can say which loss it was made with."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable

from placer.errors import UsageError
from placer.usercode import blamed

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
