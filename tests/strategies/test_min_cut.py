"""The engines of `placer place` on the blocks of a model: the strategy `min_cut`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters import SLOW, cluster
from graphs import BlockSpec, branching_graph, chain_graph
from placer.cluster.cluster import Link
from placer.errors import InfeasibleError
from placer.graph import Graph
from placer.legality import check
from placer.placement.evaluator import largest_load
from placer.placement.formats import PlaceRequest
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.strategies.min_cut.given_costs import given_costs
from placer.strategies.placement.solve import solve
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline
from problems import FREE, problem, random_problem, unequal_problem

pytestmark = pytest.mark.in_turns

THIN = Link(name="thin", latency_seconds=1e-5, bandwidth=1e9)
HEAVY = BlockSpec(flops=50_000_000, parameters=200_000)


def on_devices(graph: Graph, count: int, pins: Pins = FREE, rows: int = 8) -> Problem:
    """A problem on slow devices with little between them."""
    return problem(graph, cluster(per_node=count, device=SLOW, inside=THIN), pins=pins, rows=rows)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 20), min_size=3, max_size=7), st.integers(2, 3))
def test_the_engine_cuts_a_model_where_the_slowest_position_is_least_slow(flops: list[int], positions: int) -> None:
    graph = chain_graph([replace(HEAVY, flops=1_000_000 * each) for each in flops])
    asked = on_devices(graph, positions)
    outline = Outline(
        positions=positions, replicas=1, virtual=1, rows=8, microbatch=2, schedule="1f1b", sharding="none"
    )
    costs = given_costs(asked.costs, BlockGraph.of(graph), outline, recompute=False, kept=1)
    answer = solve(costs, PlaceRequest())
    every = [
        largest_load(costs, tuple(sum(block >= cut for cut in cuts) for block in range(len(flops))))
        for cuts in _cuts(len(flops), positions)
    ]
    assert answer.objective == pytest.approx(min(every))


def _cuts(blocks: int, positions: int) -> list[tuple[int, ...]]:
    """Every way to cut into so many ranges or fewer."""
    if positions == 2:
        return [(), *((cut,) for cut in range(1, blocks))]
    return [*_cuts(blocks, 2), *((a, b) for a in range(1, blocks) for b in range(a + 1, blocks))]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("draw", [random_problem, unequal_problem])
def test_its_plans_are_legal_and_never_better_than_what_is_proven(draw: type, seed: int) -> None:
    asked = draw(seed)
    try:
        found = solve_with(asked, "min_cut").plan
    except InfeasibleError:
        return
    exact = solve_with(asked, "stages").plan
    assert check(found) == ()
    assert found.ledger is not None and exact.ledger is not None
    assert found.schedule == "branched" or found.ledger.step_seconds >= exact.ledger.step_seconds * (1 - 1e-9)


def test_two_towers_are_cut_between_the_towers() -> None:
    graph = branching_graph([HEAVY] * 6 + [BlockSpec()], ((), (0,), (1,), (), (3,), (4,), (2, 5)))
    found = solve_with(on_devices(graph, 2, rows=1), "min_cut").plan
    homes = {block: stage.devices for stage in found.stages for block in range(stage.first, stage.last)}
    assert homes[0] == homes[1] == homes[2] != homes[3] == homes[4] == homes[5]


@pytest.mark.parametrize(
    "pins", [Pins(pipeline=2), Pins(data=2), Pins(schedule="gpipe", pipeline=3), Pins(recompute=True, microbatches=4)]
)
def test_pins_are_honoured(pins: Pins) -> None:
    # `solve_with` refuses a plan that breaks one.
    assert solve_with(on_devices(chain_graph([HEAVY] * 6), 4, pins), "min_cut").plan.stages


def test_the_budget_ends_it_and_the_same_seed_gives_the_same_plan() -> None:
    asked = replace(on_devices(chain_graph([HEAVY] * 6), 4), budget=3)
    first, second = (solve_with(asked, "min_cut") for _ in range(2))
    assert first.evaluations <= 3 + len(("1f1b", "gpipe", "zero-bubble"))
    assert first.plan.to_json() == second.plan.to_json()


def test_what_fits_nowhere_is_told() -> None:
    tiny = replace(SLOW, memory_bytes=1000)
    asked = problem(chain_graph([HEAVY] * 4), cluster(per_node=2, device=tiny, inside=THIN))
    with pytest.raises(InfeasibleError, match="memory on device"):
        solve_with(asked, "min_cut")
