"""Orders of drawn graphs with given costs larger than any that the policy was trained on, all cut in the best way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from examples.measured.learned.gaps import Row
from placer.errors import InfeasibleError
from placer.placement.formats import PlaceRequest
from placer.placement.problem import PlacementProblem
from placer.placement.solvers import place
from placer.strategies.placement.contraction import fold, topological_orders
from placer.strategies.placement.orders.cuts import Cuts
from placer.strategies.policy.network import Scorer, fresh_scorer, load_scorer
from placer.strategies.policy.orders.drawn_graphs import LARGER, drawn_graph
from placer.strategies.policy.orders.graph_game import ClassGraph
from placer.strategies.policy.orders.numbers_seen import ORDERS
from placer.strategies.policy.orders.playing import OrderPlayer, search_orders


def orders_row(seed: int, weights: Path, budgets: Sequence[int]) -> Row:
    """Every rival on the graph of a seed."""
    problem = drawn_graph(seed, LARGER)
    folded = fold(problem)
    graph = ClassGraph.of(problem, folded)
    make: dict[str, Callable[[], Scorer | None]] = {
        "trained": lambda: load_scorer(weights, ORDERS), "untuned": lambda: load_scorer(weights, ORDERS),
        "untrained": lambda: fresh_scorer(seed, ORDERS), "random": lambda: None,
    }  # fmt: skip
    players = {}
    for name, scorer in make.items():
        cuts = Cuts(problem, folded)
        found = search_orders(
            OrderPlayer(graph, cuts, scorer()), _after(cuts, max(budgets)), seed=seed, learns=name != "untuned"
        )
        values = [cut.value for cut in found]
        players[name] = tuple(min(values[:budget]) for budget in budgets)
    cuts = Cuts(problem, folded)
    others = {
        "greedy": _placed(problem, "greedy"),
        "heft": _placed(problem, "heft"),
        "sorted": min(cuts.best(order).value for order in topological_orders(folded)),
    }
    return Row(
        seed=seed, name=f"{len(problem.nodes)} nodes", size=folded.count, devices=problem.devices, players=players,
        others=others,
    )  # fmt: skip


def _after(cuts: Cuts, orders: int) -> Callable[[], bool]:
    return lambda: cuts.made >= orders


def _placed(problem: PlacementProblem, name: str) -> float:
    try:
        return place(problem, PlaceRequest(strategy=name)).objective
    except InfeasibleError:
        return math.inf
