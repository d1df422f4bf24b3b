"""Optional libraries: a missing one gives an error that names the extra to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from placer.errors import UsageError


def require_extra(extra: str, module: str) -> ModuleType:
    """The module called `module`, or UsageError naming the extra of placer-planner that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise
        raise UsageError(
            f"this needs {module}, which is not installed; install it with: pip install 'placer-planner[{extra}]'"
        ) from None
