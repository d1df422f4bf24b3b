"""What placer raises. Every message says what was asked, what was found and what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No plan exists: `binding` names what binds and by how much, `advice` what would help."""

    binding: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.binding}. {self.advice}" if self.advice else self.binding


class PlacerError(Exception):
    """Base of all errors of placer; the command line prints it without a traceback and exits with `exit_code`."""

    exit_code = 1


class UsageError(PlacerError):
    """The input is wrong: a file, a flag, a model reference, a batch."""

    exit_code = 2


class CaptureError(UsageError):
    """The model cannot be captured; the message names the source line."""


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
