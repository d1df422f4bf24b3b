"""placer: a PyTorch model and a description of machines in; a plan, its predicted cost and its execution out.

Importing this imports nothing of it: each name is fetched when it is first used, so that the command line says
something at once, and torch is only loaded by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placer import runtime as runtime
    from placer.api import capture, estimate, plan, simulate
    from placer.cluster.cluster import Cluster
    from placer.errors import Infeasible, InfeasibleError, PlacerError
    from placer.plans.plan import Plan
    from placer.plans.settings import RunSettings
    from placer.search.problem import Problem, Solution, Strategy
    from placer.tracer.inputs.constants import Constant


__all__ = [
    "Cluster",
    "Constant",
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

_HOMES = {
    "api": ("capture", "estimate", "plan", "simulate"),
    "cluster.cluster": ("Cluster",),
    "errors": ("Infeasible", "InfeasibleError", "PlacerError"),
    "plans.plan": ("Plan",),
    "plans.settings": ("RunSettings",),
    "search.problem": ("Problem", "Solution", "Strategy"),
    "tracer.inputs.constants": ("Constant",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "runtime":
        return importlib.import_module("placer.runtime")
    if name not in _HOME:
        raise AttributeError(f"module 'placer' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"placer.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
