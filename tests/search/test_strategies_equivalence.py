"""RangeClasses of blocks that have one number are held and priced alike, and those of a repeated layer have one."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import chain_graphs, gpt_graph
from placer.costs.costs import Costs
from placer.costs.memory.peak import StageMemory, stage_memory
from placer.graph import Graph
from placer.search.problem import Problem
from placer.strategies.inter_op.equivalence import RangeClasses
from problems import cluster, device, problem


@pytest.mark.parametrize("tied", [False, True])
def test_runs_of_a_repeated_layer_are_alike(tied: bool) -> None:
    found = runs(problem(gpt_graph(layers=6, tied=tied), cluster(device())))
    assert found.alike(range(1, 6))


@given(graph=chain_graphs(least=4), rows=st.integers(1, 4))
@settings(max_examples=30)
def test_runs_of_one_number_hold_the_same(graph: Graph, rows: int) -> None:
    found = runs(problem(graph, cluster(device())))
    held: dict[int, tuple[StageMemory, ...]] = {}
    for first, last in combinations(range(len(graph.blocks) + 1), 2):
        own = tuple(memory(found, first, last, rows, recompute=again) for again in (False, True))
        assert held.setdefault(found.number(first, last), own) == own


def runs(found: Problem) -> RangeClasses:
    return RangeClasses(found, Costs(found.graph, found.cluster, found.settings))


def memory(found: RangeClasses, first: int, last: int, rows: int, *, recompute: bool) -> StageMemory:
    costs = found.costs
    return stage_memory(
        costs.ranges.of(first, last), costs.numerics, costs.settings, rows=rows, recompute=recompute, sharding="none",
        replicas=2, accumulates=True,
    )  # fmt: skip
