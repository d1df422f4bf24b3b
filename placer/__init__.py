"""placer: a PyTorch model and a description of machines in; a plan, its predicted cost and its execution out.

Importing this imports no torch; what needs it imports it when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placer.api import capture, estimate, plan, simulate
from placer.cluster import Cluster
from placer.errors import Infeasible, InfeasibleError, PlacerError
from placer.plans import Plan
from placer.search import Problem, Solution, Strategy
from placer.settings import RunSettings

if TYPE_CHECKING:
    from types import ModuleType

    from placer import runtime as runtime  # placer.runtime.load needs torch: imported at first use

__all__ = [
    "Cluster",
    "Infeasible",
    "InfeasibleError",
    "PlacerError",
    "Plan",
    "Problem",
    "RunSettings",
    "Solution",
    "Strategy",
    "capture",
    "estimate",
    "plan",
    "runtime",
    "simulate",
]


def __getattr__(name: str) -> ModuleType:
    if name == "runtime":
        import importlib

        return importlib.import_module("placer.runtime")
    raise AttributeError(f"module 'placer' has no attribute {name!r}")
