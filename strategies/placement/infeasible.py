"""What binds where a problem has no placement: the first cause that is enough by itself, in words."""

from __future__ import annotations

from collections.abc import Iterator

from placer.errors import Infeasible
from placer.placement.legality import Form
from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import Folded, fold

ADVICE = "Give accelerators more memory, or add devices"


def what_binds(problem: PlacementProblem, form: Form) -> Infeasible:
    """The cause, with the figures."""
    return next(_causes(problem, fold(problem, merge=False), form))


def _causes(problem: PlacementProblem, folded: Folded, form: Form) -> Iterator[Infeasible]:
    if not problem.cpus:
        yield from _unsupported(problem)
        yield from _large_class(problem, folded, form)
        yield from _total(problem)
    held = f"{problem.accelerators} accelerators of {problem.memory:.0f} bytes and {problem.cpus} CPUs"
    what = "placement" if form == "free" else "contiguous placement"
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
    if folded.size[index] > problem.memory and form != "free":
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
