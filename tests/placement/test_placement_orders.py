"""Search over orders: the cuts of an order, moves that keep orders, `local` and `genetic` beside the exact search."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings

from placement_cases import optimum, problems, small_enough
from placer.errors import InfeasibleError, UsageError
from placer.placement.evaluator import largest_load
from placer.placement.formats import PlaceRequest
from placer.placement.legality import violations
from placer.placement.problem import PlacementNode, PlacementProblem
from placer.placement.solvers import place
from placer.strategies.placement.contraction import Folded, fold
from placer.strategies.placement.orders.cuts import Cuts
from placer.strategies.placement.orders.orders import Orders


def every_cut(problem: PlacementProblem, folded: Folded, order: tuple[int, ...]) -> float:
    """The least largest load over all ways to give runs of an order to devices, by the evaluator alone."""
    best = math.inf
    for choice in itertools.product(range(problem.devices), repeat=len(order)):
        if len([1 for a, b in itertools.pairwise(choice) if a != b]) + 1 == len(set(choice)):
            home = dict(zip(order, choice, strict=True))
            placement = tuple(home[label] for label in folded.labels)
            if not violations(problem, placement, "free"):
                best = min(best, largest_load(problem, placement))
    return best


@settings(max_examples=100)
@given(problems())
def test_an_order_is_cut_in_the_best_way(problem: PlacementProblem) -> None:
    folded = fold(problem, merge=False)
    order = tuple(range(folded.count))
    found = Cuts(problem, folded).best(order)
    assert found.value == pytest.approx(every_cut(problem, folded, order), abs=1e-9)
    if found.devices:
        placement = tuple(found.devices[label] for label in folded.labels)
        assert violations(problem, placement, "contiguous") == ()
        assert largest_load(problem, placement) == pytest.approx(found.value, abs=1e-9)


@settings(max_examples=60)
@given(problems(largest=8))
def test_moves_and_crossings_keep_every_class_behind_what_it_needs(problem: PlacementProblem) -> None:
    folded = fold(problem, merge=False)
    orders = Orders(folded, random.Random(0))
    one, other = orders.first()[0], orders.first()[-1]
    for _ in range(10):
        one, other = orders.moved(one), orders.crossed(other, one)
        for order in (one, other):
            assert sorted(order) == list(range(folded.count))
            behind = [sum(1 << index for index in order[:place]) for place in range(len(order))]
            assert all(not folded.needs[index] & ~seen for index, seen in zip(order, behind, strict=True))


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ("local", "genetic", "policy"))
@settings(max_examples=25, derandomize=True)
@given(problem=problems(largest=5))
def test_small_problems_are_solved_as_the_enumeration_does(name: str, problem: PlacementProblem) -> None:
    if not small_enough(problem):
        return
    best = optimum(problem, "contiguous")
    try:
        found = place(problem, PlaceRequest(strategy=name, budget=60))
    except InfeasibleError:
        # Folding counts bytes that a part alone would not have: what fits by a byte may be missed.
        return
    assert found.objective >= best - 1e-9
    assert found.bound == 0.0


def chain(count: int) -> PlacementProblem:
    """Unequal nodes in a row on three accelerators."""
    nodes = tuple(
        PlacementNode(name=str(n), accelerator=1.0 + n * 7 % 5, host=99.0, send=0.1 * (n % 3)) for n in range(count)
    )
    edges = tuple((n, n + 1) for n in range(count - 1))
    return PlacementProblem(nodes=nodes, edges=edges, accelerators=3, cpus=0, memory=math.inf)


@pytest.mark.parametrize("name", ("local", "genetic", "policy", "min_cut"))
def test_of_a_chain_all_find_the_same_and_twice_the_same(name: str) -> None:
    exact = place(chain(12), PlaceRequest())
    first, second = (place(chain(12), PlaceRequest(strategy=name, budget=1000)) for _ in range(2))
    assert first.objective == pytest.approx(exact.objective)
    assert first.assignment == second.assignment


def test_the_drawing_of_others_is_left_as_it_was() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    place(chain(6), PlaceRequest(strategy="genetic", budget=30))
    assert random.random() == expected


@pytest.mark.parametrize("name", ("local", "genetic", "policy"))
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="contiguous placements"):
        place(chain(4), PlaceRequest(strategy=name, free_form=True))
