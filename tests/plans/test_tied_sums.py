"""Gradients of tied parameters are summed by all devices at once: what leads out of a node is shared by those in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.parity.splits import widened
from graphs import BlockSpec, chain_graph
from pipeline_plans import changed_stage, pipeline_plan
from placer.cluster.cluster import Cluster, Level, Link, Node
from placer.costs.communication.side_by_side import side_by_side, tied_lines
from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate
from placer.plans.plan import Layout, Plan
from placer.simulator.simulation import simulate
from placer.spmd.cross_mesh import Mesh
from problems import device

# Without latency, so that a sum over two devices takes its bytes over what each gets of the port.
PORT = Link(name="port", latency_seconds=0.0, bandwidth=1e6)


def machines(nodes: int, per_node: int) -> Cluster:
    """Nodes with one port each."""
    node = Node(name="node", devices=((device(), per_node),), link=replace(PORT, bandwidth=1e12), nic=PORT)
    return Cluster(name="ported", groups=((node, nodes),), levels=(Level(name="level", link=PORT),))


def tied(plan: Plan) -> float:
    """Seconds of the closed form for what the last stage shares with the first one."""
    stage = plan.stages[-1]
    costs = Costs(plan.graph, plan.cluster, plan.settings).of_stage(plan, stage)
    return costs.after_backward.tied(stage, Mesh.of(plan, plan.stages[0]))


def played(plan: Plan) -> tuple[float, float]:
    """The least and the most seconds of one of these sums in a simulated step."""
    found = [one.end - one.start for one in simulate(plan).slices if " tied " in one.name]
    return min(found), max(found)


def test_devices_of_replicas_that_sum_at_once_share_the_port() -> None:
    """Stages of eight devices that all hold the 4 MB: eight sums of two at once, of 1 / 8 MB a second each."""
    graph = chain_graph([BlockSpec(parameters=10**6)] * 4, tied=[(0, 3)])
    base = pipeline_plan(graph, positions=2)
    plan = widened(base, Layout(degree=8, splits=(None,) * len(graph.classes)), machines(2, 8))
    assert tied(plan) == pytest.approx(8 * 4)
    assert played(plan) == pytest.approx((8 * 4, 8 * 4))


def test_every_tied_parameter_is_summed_by_itself() -> None:
    """Three of them over a link of a millisecond: three latencies of a sum, as many as in the program."""
    slow = Link(name="slow", latency_seconds=1e-3, bandwidth=1e9)
    node = Node(name="node", devices=((device(), 1),), link=slow, nic=slow)
    made = Cluster(name="slow", groups=((node, 2),), levels=(Level(name="level", link=slow),))
    graph = chain_graph([BlockSpec(parameters=1000)] * 6, tied=[(0, 3), (1, 4), (2, 5)])
    plan = pipeline_plan(graph, positions=2, machines=made)
    assert sum(" tied " in one.name for one in simulate(plan).slices) == 2 * 3
    assert tied(plan) == pytest.approx(3 * played(plan)[1])
    assert estimate(plan).step_seconds == pytest.approx(simulate(plan).step_seconds, rel=0.02)


def test_what_megatron_core_keeps_in_float32_it_sums_so() -> None:
    graph = chain_graph([BlockSpec(parameters=10**6)] * 4, tied=[(0, 3)])
    plan = pipeline_plan(graph, positions=2, machines=machines(2, 1))
    wide, narrow = (
        replace(plan, settings=replace(plan.settings, precision="bfloat16", stack=stack))
        for stack in ("megatron-core", "nemo")
    )
    assert tied(wide) == pytest.approx(2 * tied(narrow), rel=1e-3)
    assert played(wide) == pytest.approx((tied(wide),) * 2, rel=1e-3)


@pytest.mark.parametrize(("per_node", "at_once"), [(4, 2), (1, 1)])
def test_shards_that_are_summed_at_once_share_the_port(per_node: int, at_once: int) -> None:
    """Two replicas a stage hold halves of the 4 MB; each half is summed by its two holders, from node to node."""
    graph = chain_graph([BlockSpec(parameters=10**6)] * 4, tied=[(0, 3)])
    plan = pipeline_plan(graph, positions=2, replicas=2, machines=machines(4, per_node), sharding="parameters")
    second = (2, 3) if per_node == 1 else (4, 5)
    plan = changed_stage(plan, 1, devices=second)
    seconds = at_once * 4 / 2
    assert tied(plan) == pytest.approx(seconds)
    assert played(plan) == pytest.approx((seconds, seconds), rel=1e-3)


def test_lines_share_the_nodes_that_they_leave() -> None:
    cluster = machines(3, 4)
    whole, shards = (tied_lines((0, 1, 2, 3), (4, 5, 8, 9), 2, by_shard=by_shard) for by_shard in (False, True))
    assert whole == ((0, 2, 4, 8), (1, 3, 5, 9))
    assert shards == ((0, 4), (1, 5), (2, 8), (3, 9))
    assert side_by_side(cluster, whole) == (2, 2)
    assert side_by_side(cluster, shards) == (4, 4, 4, 4)
    # What stays within a node leaves its port to others.
    assert side_by_side(cluster, ((0, 1), (2, 3), (3, 4))) == (2, 2, 1)
