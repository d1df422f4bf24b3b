"""The solver of problems with given costs: which form, which strategy, and what binds where there is no placement."""

from __future__ import annotations

import importlib
import time
from typing import Protocol

from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.placement.answers import PlaceAnswer, judged
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.legality import Form
from placer.placement.problem import BoundedPlacement, PlacementProblem
from placer.strategies.placement.infeasible import what_binds
from placer.strategies.placement.throughput.rising_limits import Limits

# form -> the strategy that solves it
SOLVERS: dict[Form, str] = {
    "contiguous": "placer.strategies.placement.throughput.contiguous:contiguous",
    "free": "placer.strategies.placement.throughput.free_form:free_form",
    "latency": "placer.strategies.placement.latency.latency:latency",
}


class Solver(Protocol):
    """Finds a placement of one form."""

    def __call__(self, problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
        """The best placement found within the limits, and what is proved."""
        ...


def solve(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The answer, judged. Raises InfeasibleError with what binds, UsageError for a form that the problem has not."""
    if not isinstance(problem, PlacementProblem):
        raise UsageError(f"a {problem.format} problem was given to the solver of graphs with given costs")
    form = _form(problem, request)
    module, attribute = SOLVERS[form].split(":")
    solver: Solver = getattr(importlib.import_module(module), attribute)
    started = time.perf_counter()
    found = solver(problem, Limits(pairs=request.budget, seconds=request.seconds))
    seconds = time.perf_counter() - started
    if found.placement is None:
        raise InfeasibleError(_nothing(problem, found, form))
    return judged(problem, found.placement, form, bound=found.bound, seconds=seconds, notes=found.notes)


def _form(problem: PlacementProblem, request: PlaceRequest) -> Form:
    if request.objective == "throughput":
        return "free" if request.free_form else "contiguous"
    if request.free_form:
        raise UsageError("--free-form was asked for with --objective latency, which has the contiguous form only")
    if any(node.backward for node in problem.nodes):
        raise UsageError("--objective latency is about inference, the graph has backward nodes; ask for throughput")
    return "latency"


def _nothing(problem: PlacementProblem, found: BoundedPlacement, form: Form) -> Infeasible:
    if found.bound == float("inf"):
        return what_binds(problem, form)
    return Infeasible(
        binding="no placement was found before the search ended, and none was proved impossible",
        advice="Give it more --budget or --seconds",
    )
