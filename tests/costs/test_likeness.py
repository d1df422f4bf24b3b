"""Stages that are alike are priced once: at the very numbers that each of them has by itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs import gpt_graph
from placer.cluster.cluster import Cluster
from placer.costs.costs import Costs
from placer.costs.exact_sums import exact_sums
from placer.costs.timing.step import StageCost
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.problem import Problem
from placer.spmd.cross_mesh import Mesh
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.moves.neighbourhood import Neighbourhood
from placer.strategies.moves.outlined import outlined
from problems import problem, split_problem

NUMBERS = st.lists(st.floats(0, 1e3) | st.floats(0, 1e-6), min_size=1, max_size=40)


def two_nodes_of_eight() -> Problem:
    """Twelve equal layers, tied embeddings, on two nodes."""
    graph = gpt_graph(layers=12, hidden=256, heads=8, sequence=32, vocabulary=500, rows=64)
    return problem(graph, Cluster.load("a100-80gb-sxm4x8*2"), settings=RunSettings(precision="bfloat16"))


def cost(costs: Costs, plan: Plan, number: int) -> StageCost:
    """The cost of one stage of a plan, no other one being asked for."""
    stage, chain = plan.stages[number], [Mesh.of(plan, one) for one in plan.stages]
    return costs.of_stage(plan, stage).stage_cost(
        stage, following=chain[number + 1] if number + 1 < len(chain) else (), leading=chain[0],
        rows=max(plan.microbatches), last_rows=plan.microbatches[-1], bucket_bytes=plan.bucket_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("made", [two_nodes_of_eight, *(lambda seed=seed: split_problem(seed) for seed in range(3))])
def test_a_stage_costs_what_it_costs_by_itself(made: Callable[[], Problem]) -> None:
    drawn, rng = made(), random.Random(0)
    around = Neighbourhood.of(drawn, layouts(drawn, drawn.costs))
    asked = 0
    for _ in range(12):
        plan = outlined(around, rng)
        for number in range(len(plan.stages) if plan is not None else 0):
            assert plan is not None
            fresh = Costs(plan.graph, plan.cluster, plan.settings)
            assert cost(drawn.costs, plan, number) == cost(fresh, plan, number)
            asked += 1
    assert asked > 12


def test_equal_positions_of_equal_layers_are_one_price() -> None:
    given_problem = two_nodes_of_eight()
    stages, costs = given_problem.graph.blocks, given_problem.costs
    sums = costs.block_times.of(0, 4)
    thirds = {sums.forward[first + 3] - sums.forward[first] for first in range(2, len(stages) - 4)}
    assert len(thirds) == 1


@given(NUMBERS)
def test_sums_are_exact_and_each_number_is_off_by_a_hair(values: list[float]) -> None:
    sums, total = exact_sums(values), sum(values)
    each = [Fraction(b) - Fraction(a) for a, b in itertools.pairwise(sums)]
    assert all(abs(own - Fraction(value)) <= Fraction(total) / 2**51 for own, value in zip(each, values, strict=True))
    for first in range(len(values)):
        for last in range(first, len(values) + 1):
            assert Fraction(sums[last] - sums[first]) == sum(each[first:last], Fraction(0))
