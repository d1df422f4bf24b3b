"""`placer place --strategy local` and `--strategy genetic`: contiguous placements by search over orders; what a search
over orders finds as an answer, whosever it is."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from placer.errors import Infeasible, InfeasibleError, UsageError, require_extra
from placer.placement.answers import PlaceAnswer, judged
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import Folded, fold
from placer.strategies.placement.orders.cuts import Cut, Cuts
from placer.strategies.placement.orders.local import local
from placer.strategies.placement.solve import form_of

# Orders that are cut where nothing is asked for: some seconds.
EVALUATIONS = 1_000

# From (cuts, folded, seed, over) the best cut; it ends when over() says so.
OrderSearch = Callable[[Cuts, Folded, int, Callable[[], bool]], Cut]


def solve(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The answer, judged. Raises InfeasibleError where no order has cuts that fit, UsageError for other forms."""
    return answer_by(_search(request.strategy), problem, request)


def answer_by(search: OrderSearch, problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The answer of one search over orders, judged; raises as `solve` does."""
    if not isinstance(problem, PlacementProblem) or form_of(problem, request) != "contiguous":
        raise UsageError(
            f"--strategy {request.strategy} searches contiguous placements of nodes with one cost each for throughput; "
            "leave out the other form, or take another strategy"
        )
    begun = time.perf_counter()
    folded = fold(problem)
    until = math.inf if request.seconds is None else begun + request.seconds
    most = EVALUATIONS if request.budget is None and request.seconds is None else request.budget
    cuts = Cuts(problem, folded)

    def over() -> bool:
        return cuts.made >= (math.inf if most is None else most) or time.perf_counter() >= until

    found = search(cuts, folded, request.seed, over)
    seconds = time.perf_counter() - begun
    if not found.devices:
        raise InfeasibleError(
            Infeasible(
                binding=f"memory: none of {cuts.made} orders has cuts that fit",
                advice="Take the exact strategy, or give accelerators more memory",
            )
        )
    placement = tuple(found.devices[label] for label in folded.labels)
    notes = (f"placed by {request.strategy}, {cuts.made} orders",)
    return judged(problem, placement, "contiguous", bound=0.0, seconds=seconds, notes=notes)


def _search(name: str) -> OrderSearch:
    """The search called so; UsageError where its extra is missing."""
    if name == "local":
        return lambda cuts, folded, seed, over: local(cuts, folded, random.Random(seed), over)
    require_extra("genetic", "deap")
    from placer.strategies.placement.orders.genetic import genetic  # DEAP may be missing

    return lambda cuts, folded, seed, over: genetic(cuts, folded, random.Random(seed), over)
