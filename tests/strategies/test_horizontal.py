"""Branches on devices of their own: the strategy `horizontal`."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings

from clusters import SLOW, cluster
from graphs import BlockSpec, branching_graph, branching_graphs, chain_graph
from placer.cluster.cluster import Cluster, Level, Link, Node
from placer.errors import Infeasible, InfeasibleError
from placer.graph import Graph
from placer.legality import check
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem, Solution, strategy
from placer.strategies.horizontal.descent import neighbours
from placer.strategies.space.block_graph import BlockGraph, branches_matter
from placer.strategies.space.likely_outlines import likely_outlines
from placer.strategies.space.parts import listed_by_speed, parts
from placer.strategies.space.placements import Placing, twins_joined
from problems import FREE, device, problem
from problems import cluster as in_one_node

HEAVY = BlockSpec(flops=50_000_000, parameters=200_000)
THIN = Link(name="thin", latency_seconds=1e-5, bandwidth=1e8)
# Two towers of three blocks and a head.
TOWERS = ((), (0,), (1,), (), (3,), (4,), (2, 5))

# Six tables and what reads them all.
TABLES = ((),) * 6 + (tuple(range(6)),)

# A trunk of two blocks, heads of one, two and four, and the sum of their losses.
HEADS = ((), (0,), (1,), (1,), (3,), (1,), (5,), (6,), (7,), (2, 4, 8))
QUICK, SLOWER = device(rate=1e12, name="quick"), device(rate=4e11, name="slower")


def towers() -> Graph:
    """Two towers whose weights are dear to sum over replicas."""
    return branching_graph([HEAVY] * 6 + [BlockSpec()], TOWERS)


def of_two(graph: Graph, pins: Pins = FREE, budget: int | None = None, rows: int = 2) -> Problem:
    """A problem on two slow devices with little between them."""
    return replace(problem(graph, cluster(per_node=2, device=SLOW, inside=THIN), pins=pins, rows=rows), budget=budget)


def test_two_towers_are_faster_beside_each_other_than_any_chain_of_stages() -> None:
    one_row = of_two(towers(), rows=1)
    graph, chain = solve_with(one_row, "horizontal").plan, solve_with(one_row, "stages").plan
    assert graph.ledger is not None and chain.ledger is not None
    assert graph.schedule == "branched"
    assert graph.ledger.step_seconds < 0.8 * chain.ledger.step_seconds
    homes = {block: stage.devices for stage in graph.stages for block in range(stage.first, stage.last)}
    assert homes[0] == homes[1] == homes[2] != homes[3] == homes[4] == homes[5]


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ["local", "genetic"])
def test_searches_by_moves_have_towers_beside_each_other_too(name: str) -> None:
    graph, moved = (solve_with(of_two(towers(), budget=400), given).plan for given in ("horizontal", name))
    assert graph.ledger is not None and moved.ledger is not None
    assert moved.schedule == "branched"
    assert moved.ledger.step_seconds <= graph.ledger.step_seconds * (1 + 1e-9)


@pytest.mark.in_turns
def test_auto_takes_the_graph_of_stages_and_claims_no_bound_for_it() -> None:
    found = solve_with(of_two(towers()), "auto").plan
    assert found.strategy in ("horizontal", "lists")  # whose plans are equally fast here
    assert (found.schedule, found.bound) == ("branched", None)


def test_the_pin_of_another_schedule_forbids_it() -> None:
    with pytest.raises(InfeasibleError, match=r"schedule=1f1b is of a chain of stages"):
        solve_with(of_two(towers(), Pins(schedule="1f1b")), "horizontal")
    assert solve_with(of_two(towers(), Pins(schedule="1f1b")), "auto").plan.schedule == "1f1b"


def test_a_model_without_branches_is_told_so() -> None:
    with pytest.raises(InfeasibleError, match=r"waits for the one before it: it has no branches"):
        solve_with(of_two(chain_graph([HEAVY] * 4)), "horizontal")


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "pins", [Pins(pipeline=2), Pins(data=1, microbatches=2), Pins(recompute=True), Pins(schedule="branched")]
)
def test_pins_are_honoured(pins: Pins) -> None:
    # `solve_with` refuses a plan that breaks one.
    assert solve_with(of_two(towers(), pins), "horizontal").plan.schedule == "branched"


def test_the_budget_ends_it_early_with_a_plan() -> None:
    found = solve_with(of_two(towers(), budget=6), "horizontal")
    assert found.evaluations <= 6
    assert check(found.plan) == ()


def test_the_same_seed_gives_the_same_plan() -> None:
    first, second = (solve_with(of_two(towers()), "horizontal").plan.to_json() for _ in range(2))
    assert first == second


@settings(max_examples=15)
@given(branching_graphs())
def test_whatever_branches_gets_a_legal_plan(graph: Graph) -> None:
    given = of_two(graph)
    if BlockGraph.of(graph).branches:
        assert check(solve_with(given, "horizontal").plan) == ()
    else:
        with pytest.raises(InfeasibleError, match="no branches"):
            solve_with(given, "horizontal")


def test_runs_are_what_does_not_branch() -> None:
    blocks = BlockGraph.of(towers())
    assert blocks.runs == ((0, 1, 2), (3, 4, 5), (6,))
    assert blocks.readers[2] == (6,)


def test_of_twins_those_of_a_position_are_one_stage() -> None:
    graph = branching_graph([HEAVY] * 6 + [BlockSpec()], TABLES)
    blocks, asked = BlockGraph.of(graph), of_two(graph)
    assert blocks.twins == ((0, 1, 2, 3, 4, 5),)
    placement = (1, 0, 1, 0, 0, 1, 0)
    assert twins_joined(placement, blocks) == ((0, 0, 0, 1, 1, 1, 0), ((0, 3), (3, 6), (6, 7)))
    for pins, ways in ((FREE, 2), (Pins(stage_of=(("1", 1),)), 1)):
        outline = likely_outlines(replace(asked, pins=pins), (None,), "branched", range(2, 3))[0][0]
        placing = Placing(
            problem=replace(asked, pins=pins), blocks=blocks, outline=outline, layout=None, recompute=False
        )
        assert len(list(placing.ways(placement))) == ways
        assert next(placing.ways(placement)) == (placement, ((0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7)))


def test_of_both_ways_to_place_twins_the_better_one_is_taken() -> None:
    asked = of_two(branching_graph([HEAVY] * 6 + [BlockSpec()], TABLES), rows=1)
    blocks = BlockGraph.of(asked.graph)
    outline = likely_outlines(asked, (None,), "branched", range(2, 3))[0][0]
    placing = Placing(problem=asked, blocks=blocks, outline=outline, layout=None, recompute=False)
    placement = (0, 1, 0, 1, 0, 1, 0)
    scores = [placing.score(*way) for way in placing.ways(placement)]
    assert len(set(scores)) == 2 and placing.best(placement)[0] == min(scores)
    assert seconds(replace(asked, pins=Pins(pipeline=2)), "greedy") <= min(scores)[1]


def test_what_is_tied_to_other_blocks_is_no_twin() -> None:
    graph = branching_graph([HEAVY] * 6 + [BlockSpec()], TABLES)
    tied = replace(graph.blocks[2], parameters=graph.blocks[0].parameters)
    assert BlockGraph.of(replace(graph, blocks=(*graph.blocks[:2], tied, *graph.blocks[3:]))).twins == (
        (0, 2),
        (1, 3, 4, 5),
    )


def test_blocks_that_another_reads_or_of_another_class_are_no_twins() -> None:
    readers = ((), (0,), (0,), (1, 2), (2,))
    assert BlockGraph.of(branching_graph([HEAVY] * 5, readers)).twins == ()
    unlike = branching_graph([BlockSpec(), HEAVY, BlockSpec(), HEAVY], ((), (0,), (0,), (1, 2)))
    assert BlockGraph.of(unlike).twins == ()


def test_a_move_takes_a_run_or_a_part_of_it_to_one_other_position() -> None:
    blocks = BlockGraph.of(towers())
    start = (0,) * 7
    found = set(neighbours(start, blocks, 2))
    assert (1, 1, 1, 0, 0, 0, 0) in found and (0, 1, 1, 0, 0, 0, 0) in found and (1, 0, 0, 0, 0, 0, 0) in found
    assert start not in found
    assert all(len(set(moved)) == 2 for moved in found)


def test_branches_matter_where_much_lies_beside_the_heaviest_way() -> None:
    assert branches_matter(towers())
    assert not branches_matter(chain_graph([HEAVY] * 4))
    # Three heavy blocks in a row, and beside them one that is a twentieth of a block.
    light = BlockSpec(flops=HEAVY.flops // 20, parameters=HEAVY.parameters // 20)
    assert not branches_matter(branching_graph([HEAVY, HEAVY, light, HEAVY], ((), (0,), (), (1, 2))))
    assert BlockGraph.of(towers()).breadth([1.0] * 6 + [0.0]) == 2.0


def test_auto_names_horizontal_only_where_it_was_tried() -> None:
    chain = solve_with(of_two(chain_graph([HEAVY] * 4)), "auto")
    assert "horizontal" not in {other.name for other in chain.alternatives}


def seconds(given: Problem, name: str) -> float:
    """Of a step of the plan that is found."""
    ledger = solve_with(given, name).plan.ledger
    assert ledger is not None
    return ledger.step_seconds


def unequal_heads() -> Graph:
    """A trunk and three heads of blocks that all differ."""
    rng = random.Random(1)
    blocks = [
        BlockSpec(
            flops=int(10 ** rng.uniform(7, 8.5)), parameters=int(10 ** rng.uniform(3, 5.5)),
            output=int(10 ** rng.uniform(2, 4)),
        )
        for _ in range(9)
    ]  # fmt: skip
    return branching_graph(blocks, ((), (0,), (1,), (2,), (1,), (4,), (1,), (6,), (3, 5, 7)), rows=4)


def in_nodes(*chips: tuple[str, int]) -> Cluster:
    """Nodes of so many quick or slower devices, with little between them."""
    inside = Link(name="link", latency_seconds=1e-6, bandwidth=1e10)
    out = Link(name="nic", latency_seconds=5e-5, bandwidth=1e9)
    made = [
        Node(name=f"node{i}", devices=((QUICK if kind == "quick" else SLOWER, count),), link=inside, nic=out)
        for i, (kind, count) in enumerate(chips)
    ]
    return Cluster(name="nodes", groups=tuple((node, 1) for node in made), levels=(Level(name="network", link=out),))


def test_auto_is_no_worse_than_a_few_moves_where_a_model_branches() -> None:
    graph = branching_graph(
        [BlockSpec(flops=20_000_000, parameters=200_000, output=10_000)] * 9 + [BlockSpec()], HEADS, rows=4
    )
    given = problem(graph, in_one_node(*[QUICK] * 3))
    found = solve_with(given, "auto")
    assert found.plan.ledger is not None and found.ended == ""
    assert found.plan.ledger.step_seconds <= seconds(replace(given, budget=300), "local") * (1 + 1e-9)


@pytest.mark.in_turns
@pytest.mark.parametrize("more", [("slower", 2), ("quick", 3)])
def test_a_node_more_hides_no_plan_of_the_node_alone(more: tuple[str, int]) -> None:
    graph = unequal_heads()
    alone = seconds(problem(graph, in_nodes(("quick", 3))), "horizontal")
    for chips in (("quick", 3), more), (more, ("quick", 3)):
        assert seconds(problem(graph, in_nodes(*chips)), "horizontal") <= alone * (1 + 1e-9)


@pytest.mark.in_turns
@pytest.mark.parametrize("name", ["horizontal", "lists", "local"])
def test_the_order_in_which_devices_are_listed_changes_nothing(name: str) -> None:
    orders = (QUICK, SLOWER, SLOWER), (SLOWER, SLOWER, QUICK), (SLOWER, QUICK, SLOWER)
    budget = 200 if name == "local" else None
    times = {seconds(replace(problem(unequal_heads(), in_one_node(*chips)), budget=budget), name) for chips in orders}
    assert max(times) <= min(times) * (1 + 1e-9)


def test_parts_are_the_classes_and_one_node_of_each_kind() -> None:
    def devices(machines: Cluster) -> tuple[tuple[int, ...], ...]:
        return tuple(part.devices for part in parts(machines))

    assert devices(in_one_node(*[QUICK] * 4)) == ()
    assert devices(in_one_node(SLOWER, QUICK, SLOWER)) == ((0, 2),)
    assert devices(in_nodes(("slower", 2), ("quick", 3))) == ((2, 3, 4), (0, 1))
    assert devices(in_nodes(("quick", 3), ("quick", 3))) == ((0, 1, 2),)
    assert listed_by_speed(in_nodes(("slower", 2), ("quick", 3))).devices == (2, 3, 4, 0, 1)


def test_parts_have_what_the_whole_leaves_of_a_budget() -> None:
    machines = in_nodes(("quick", 3), ("slower", 2))
    free = strategy("horizontal").solve(problem(unequal_heads(), machines))
    assert isinstance(free, Solution)
    for budget in (20, free.evaluations):
        found = strategy("horizontal").solve(replace(problem(unequal_heads(), machines), budget=budget))
        assert isinstance(found, Solution) and found.evaluations <= budget
    assert isinstance(found, Solution)
    assert found.plan.stages == free.plan.stages


def test_why_nothing_fits_names_devices_as_the_file_does() -> None:
    small, large = device(memory=2**20, name="small"), device(rate=1e13, memory=2**22, name="large")
    found = strategy("horizontal").solve(problem(unequal_heads(), in_one_node(small, large, large)))
    assert isinstance(found, Infeasible)
    assert "device 0: " not in found.binding or "of 1.00 MiB" in found.binding.split("device 0: ")[1].split(",")[0]
