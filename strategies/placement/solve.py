"""The solver of problems with given costs: which form, which strategy, and what binds where there is no placement."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Protocol

from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.placement.answers import PlaceAnswer, judged
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.legality import Form
from placer.placement.problem import BoundedPlacement, PlacementProblem
from placer.strategies.placement.contraction import Folded, fold
from placer.strategies.placement.limits import Limits

ADVICE = "Give accelerators more memory, or add devices"

# form -> the strategy that solves it
SOLVERS: dict[Form, str] = {
    "contiguous": "placer.strategies.placement.throughput.contiguous:contiguous",
    "free": "placer.strategies.placement.throughput.free_form:free_form",
    "latency": "placer.strategies.placement.latency.latency:latency",
    "makespan": "placer.strategies.lists.finish_time.search:finish_time",
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
    form = form_of(problem, request)
    module, attribute = SOLVERS[form].split(":")
    solver: Solver = getattr(importlib.import_module(module), attribute)
    started = time.perf_counter()
    found = solver(problem, Limits(pairs=request.budget, seconds=request.seconds))
    seconds = time.perf_counter() - started
    if found.placement is None:
        raise InfeasibleError(_nothing(problem, found, form))
    return judged(problem, found.placement, form, bound=found.bound, seconds=seconds, notes=found.notes)


def form_of(problem: PlacementProblem, request: PlaceRequest) -> Form:
    """The form that is asked for. Raises UsageError for one that the problem has not."""
    objective = request.objective or ("makespan" if problem.format == "doppler" else "throughput")
    if objective == "throughput":
        return "free" if request.free_form else "contiguous"
    if request.free_form:
        form = "contiguous form" if objective == "latency" else "free form anyway: leave it out"
        raise UsageError(f"--free-form was asked for with --objective {objective}, which has the {form} only")
    if objective == "makespan":
        return "makespan"
    if any(node.backward for node in problem.nodes):
        raise UsageError("--objective latency is about inference, the graph has backward nodes; ask for throughput")
    return "latency"


def _nothing(problem: PlacementProblem, found: BoundedPlacement, form: Form) -> Infeasible:
    """Why there is no placement, with the figures."""
    if found.bound == float("inf"):
        return next(_causes(problem, fold(problem, merge=False), form))
    return Infeasible(
        binding="no placement was found before the search ended, and none was proved impossible",
        advice="Give it more --budget or --seconds",
    )


def _causes(problem: PlacementProblem, folded: Folded, form: Form) -> Iterator[Infeasible]:
    """What binds where there is no placement: the first cause that is enough by itself comes first."""
    if not problem.cpus:
        yield from _unsupported(problem)
        yield from _large_class(problem, folded, form)
        yield from _total(problem)
    held = f"{problem.accelerators} accelerators of {problem.memory:.0f} bytes and {problem.cpus} CPUs"
    what = "placement" if form in ("free", "makespan") else "contiguous placement"
    yield Infeasible(
        binding=f"memory: no {what} fits {held}, though the {_bytes(problem):.0f} bytes of all nodes may fit together",
        advice=ADVICE,
    )


def _unsupported(problem: PlacementProblem) -> Iterator[Infeasible]:
    stuck = [node.name for node in problem.nodes if not node.supported]
    if stuck:
        names = ", ".join(stuck[:5])
        yield Infeasible(
            binding=f"{len(stuck)} nodes are not supported on accelerators ({names}) and there is no CPU",
            advice="Add a CPU (maxCPUs)",
        )


def _large_class(problem: PlacementProblem, folded: Folded, form: Form) -> Iterator[Infeasible]:
    index = max(range(folded.count), key=lambda index: folded.size[index])
    if folded.size[index] > problem.memory and form in ("contiguous", "latency"):
        members = [node.name for node, label in zip(problem.nodes, folded.labels, strict=True) if label == index]
        yield Infeasible(
            binding=f"memory: node {members[0]} with the {len(members) - 1} that must share its device holds "
            f"{folded.size[index]:.0f} bytes, an accelerator has {problem.memory:.0f} and there is no CPU",
            advice=ADVICE,
        )


def _total(problem: PlacementProblem) -> Iterator[Infeasible]:
    room = problem.accelerators * problem.memory
    if _bytes(problem) > room:
        yield Infeasible(
            binding=f"memory: the nodes hold {_bytes(problem):.0f} bytes, {problem.accelerators} accelerators have "
            f"{room:.0f} together and there is no CPU",
            advice=ADVICE,
        )


def _bytes(problem: PlacementProblem) -> float:
    return sum(node.size for node in problem.nodes)
