"""Sums that other positions wait for: the closed form does not end before the simulated step, nor a played order.

What is tied is summed when both of its positions are there; where state is sharded the last backward of a stage
scatters gradients before it sends its own on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clusters import INSIDE, SLOW, cluster
from graphs import BlockSpec, branching_graphs, chain_graph
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Cluster, Link, Node
from placer.costs.step_estimate import estimate
from placer.graph import Graph
from placer.legality import check
from placer.plans.plan import Plan, Sharding, Stage
from placer.simulator import simulate

AGREEMENT = 0.02
FAST = replace(SLOW, name="fast", rates=(("float32", 1e12),))
WIRE = Link(name="wire", latency_seconds=1e-6, bandwidth=1e9)
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "parameters")


def ratio(plan: Plan) -> float:
    """How long a step takes by the estimate, to how long when it is played."""
    return estimate(plan).step_seconds / simulate(plan).step_seconds


def unlike(data: st.DataObject, positions: int, replicas: int) -> Cluster:
    """One node of positions whose devices may be fast or slow."""
    chips = [data.draw(st.sampled_from([FAST, SLOW])) for _ in range(positions)]
    node = Node(name="node", devices=tuple((chip, replicas) for chip in chips), link=WIRE, nic=WIRE)
    return Cluster(name="unlike", groups=((node, 1),))


@st.composite
def unlike_blocks(draw: st.DrawFn, count: int) -> list[BlockSpec]:
    """Blocks of unlike work and parameters."""
    sizes = [draw(st.integers(10**4, 10**6)) for _ in range(count)]
    return [BlockSpec(flops=10 ** draw(st.integers(6, 8)), parameters=size) for size in sizes]


@settings(max_examples=40)
@given(st.data())
def test_what_is_tied_waits_for_the_first_position(data: st.DataObject) -> None:
    """Which is there last, and has most gradients to sum and to update before."""
    positions, shared = data.draw(st.integers(2, 4)), data.draw(st.integers(10**5, 10**6))
    blocks = [*data.draw(unlike_blocks(positions)), BlockSpec(parameters=shared)]
    blocks[:2] = [BlockSpec(parameters=shared), BlockSpec(parameters=10**7)]
    plan = pipeline_plan(
        chain_graph(blocks, tied=[(0, positions)]), positions=positions, replicas=2, microbatches=1,
        cuts=(0, *range(2, positions + 2)), machines=unlike(data, positions, 2),
    )  # fmt: skip
    assume(not check(plan))
    assert ratio(plan) >= 1 - AGREEMENT


@settings(max_examples=40)
@given(st.data())
def test_a_stage_waits_for_what_those_behind_it_scatter(data: st.DataObject) -> None:
    positions, replicas = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 3))
    plan = pipeline_plan(
        chain_graph(data.draw(unlike_blocks(positions))), positions=positions, replicas=replicas,
        microbatches=1, machines=unlike(data, positions, replicas),
        sharding=data.draw(st.sampled_from(["gradients", "parameters"])),
    )  # fmt: skip
    assume(not check(plan))
    assert ratio(plan) >= 1 - AGREEMENT


@pytest.mark.in_turns
@settings(max_examples=40)
@given(branching_graphs(), st.data())
def test_a_graph_of_replicated_stages_is_estimated_as_it_is_simulated(graph: Graph, data: st.DataObject) -> None:
    """Whatever of their state is sharded: buckets, scatters and what is gathered after the update come where the
    programs have them."""
    count, sharding = len(graph.blocks), data.draw(st.sampled_from(SHARDINGS))
    places = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    names = {place: index for index, place in enumerate(dict.fromkeys(places))}
    plan = pipeline_plan(
        graph, microbatches=data.draw(st.sampled_from([(8,), (4, 4), (2, 2, 2, 2)])),
        machines=cluster(per_node=2 * len(names), device=SLOW, inside=INSIDE),
    )  # fmt: skip
    stages = tuple(
        Stage(first=i, last=i + 1, devices=(2 * names[place], 2 * names[place] + 1), sharding=sharding)
        for i, place in enumerate(places)
    )
    plan = replace(plan, stages=stages, schedule="branched")
    assume(len(stages) > 1 and not check(plan))
    assert abs(ratio(plan) - 1) <= AGREEMENT
