"""`placer place --strategy policy`: contiguous placements by orders that the learned policy plays."""

from __future__ import annotations

from collections.abc import Callable

from placer.placement.answers import PlaceAnswer
from placer.placement.formats import FileProblem, PlaceRequest
from placer.placement.problem import PlacementProblem
from placer.strategies.placement.contraction import Folded
from placer.strategies.placement.orders.answer import answer_by
from placer.strategies.placement.orders.cuts import Cut, Cuts
from placer.strategies.policy.network import one_thread
from placer.strategies.policy.orders.graph_game import ClassGraph
from placer.strategies.policy.orders.numbers_seen import load_orders_scorer
from placer.strategies.policy.orders.playing import OrderPlayer, search_orders


def solve(problem: FileProblem, request: PlaceRequest) -> PlaceAnswer:
    """The answer, judged. Raises InfeasibleError where no order has cuts that fit, UsageError for other forms."""

    def search(cuts: Cuts, folded: Folded, seed: int, over: Callable[[], bool]) -> Cut:
        assert isinstance(problem, PlacementProblem)
        player = OrderPlayer(ClassGraph.of(problem, folded), cuts, load_orders_scorer())
        with one_thread():
            return min(search_orders(player, over, seed=seed), key=lambda cut: cut.value)

    return answer_by(search, problem, request)
