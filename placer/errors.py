"""What placer raises. Every message says what was asked, what was found and what to do.

Names that may have been meant by one that there is not.

Optional libraries: a missing one gives an error that names the extra to install.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

# Characters of a message.
MOST_TOLD = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No plan exists: `binding` names what binds and by how much, `advice` what would help.

    near: it is said of the nearest plan that was looked at, not proven of all.
    """

    binding: str
    advice: str = ""
    near: bool = False

    def __str__(self) -> str:
        return f"{self.binding}. {self.advice}" if self.advice else self.binding


class PlacerError(Exception):
    """Base of all errors of placer; the command line prints it without a traceback and exits with `exit_code`.

    Of messages that repeat what a file says at length only the beginning is told.
    """

    exit_code = 1

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= MOST_TOLD else f"{text[:MOST_TOLD]}... ({len(text)} characters)"


class UsageError(PlacerError):
    """The input is wrong: a file, a flag, a model reference, a batch."""

    exit_code = 2


class NoNetworkError(UsageError):
    """Several machines are asked for, and nothing says what joins them."""


class CaptureError(UsageError):
    """The model cannot be captured; the message names the source line."""


class UncapturableError(CaptureError):
    """What forward does cannot be captured, and no other batch helps."""


class StalePlanError(UsageError):
    """The plan was made for another model, cluster, schema or version; the message says what changed."""


class IllegalPlanError(UsageError):
    """The plan breaks rules; the message lists every one."""


class ExecutionError(PlacerError):
    """A run failed: a rank died, communication timed out, the loss is not a number."""


class StrategyError(PlacerError):
    """A strategy broke its promise: an illegal plan, a wrong estimate, a bound above its own plan."""


class InfeasibleError(PlacerError):
    """No legal plan fits; `infeasible` says what binds."""

    def __init__(self, infeasible: Infeasible):
        super().__init__(str(infeasible))
        self.infeasible = infeasible


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Of dotted names those that end in `name`, else up to three that look like it, else the first three."""
    within = [one for one in names if one.endswith(f".{name}")]
    return within or difflib.get_close_matches(name, names, n=3) or list(names[:3])


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
