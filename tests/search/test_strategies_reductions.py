"""Estimate, simulation, bounds and search know how a plan's replicas sum their gradients, and a pin keeps a way."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

import problems
from graphs import BlockSpec, chain_graph
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Cluster, Link, Node
from placer.costs.communication.reductions import reduction_seconds, reductions
from placer.costs.step_estimate import costs_of, estimate
from placer.costs.timing.after_backward import bucket_seconds
from placer.errors import UsageError
from placer.plans.plan import Plan, Reduction
from placer.search.asked import parse_pins, pin_texts
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.simulator import simulate

WAYS: tuple[Reduction, ...] = get_args(Reduction)
CPU = problems.device(rate=1e10)
MIB, PARAMETERS, BLOCKS = 2**20, 2**18, 4


def machines(*rates: float, per_node: int = 2) -> Cluster:
    """Nodes whose ways out have so many bytes a second."""
    inside = Link(name="link", latency_seconds=1e-6, bandwidth=1e10)
    nics = [Link(name="nic", latency_seconds=1e-5, bandwidth=rate, setup_seconds=1e-4) for rate in rates]
    groups = tuple((Node(name=f"n{i}", devices=((CPU, per_node),), link=inside, nic=n), 1) for i, n in enumerate(nics))
    return Cluster(name="made", groups=groups)


def plan(cluster: Cluster, way: Reduction, *, positions: int = 1, overlap: bool = True) -> Plan:
    """Replicas on all devices; of several positions each has devices of every node."""
    graph = chain_graph([BlockSpec(parameters=PARAMETERS, flops=10**8, output=10)] * BLOCKS, rows=16)
    replicas = cluster.size // positions
    made = pipeline_plan(graph, positions=positions, replicas=replicas, machines=cluster, microbatches=(8, 8))
    places = [tuple(range(at, cluster.size, positions)) for at in range(positions)]
    stages = (replace(one, devices=places[at], reduction=way) for at, one in enumerate(made.stages))
    settings = replace(made.settings, overlap=overlap)
    return replace(made, stages=tuple(stages), settings=settings, bucket_bytes=MIB)


@pytest.mark.parametrize("way", WAYS)
def test_the_estimate_sums_in_the_way_of_the_plan(way: Reduction) -> None:
    made = plan(machines(1e7, 1e8), way, overlap=False)
    own = reduction_seconds(made.cluster, (0, 1, 2, 3), MIB)[way] + bucket_seconds(MIB, CPU)
    scalars = 2 * costs_of(made).network.collective("all_reduce", (0, 1, 2, 3), 8)  # the norm and the loss
    assert estimate(made).seconds.reduction == pytest.approx(BLOCKS * own + scalars)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("rates", [(1e7, 1e7), (1e7, 1e8), (1e8, 1e9, 1e8)], ids=str)
def test_closed_form_and_simulation_agree_on_all(rates: tuple[float, ...], positions: int, way: Reduction) -> None:
    made = plan(machines(*rates), way, positions=positions)
    assert simulate(made).step_seconds == pytest.approx(estimate(made).step_seconds, rel=0.02)


def test_a_slower_way_makes_a_longer_step() -> None:
    cluster = machines(1e7, 1e8)
    sums = reduction_seconds(cluster, (0, 1, 2, 3), MIB)
    plans = {way: plan(cluster, way) for way in WAYS}
    estimated = {way: estimate(one).step_seconds for way, one in plans.items()}
    simulated = {way: simulate(one).step_seconds for way, one in plans.items()}
    for steps in (estimated, simulated):
        assert sorted(steps, key=steps.__getitem__) == sorted(sums, key=sums.__getitem__)


# -- the search


def given(cluster: Cluster, *pins: str, blocks: int = 3) -> Problem:
    graph = chain_graph([BlockSpec(parameters=PARAMETERS, flops=2 * 10**8, output=2**14)] * blocks, rows=8)
    return problems.problem(graph, cluster, pins=parse_pins(pins, graph))


@pytest.mark.in_turns
@pytest.mark.parametrize("rates", [(1e8, 1e8), (1e8, 1e9), (1e9, 1e8)], ids=str)
@pytest.mark.parametrize("strategy", ["stages", "exhaustive", "auto"])
def test_no_pinned_way_is_faster_than_the_one_found_and_none_is_below_the_bound(
    strategy: str, rates: tuple[float, ...]
) -> None:
    cluster = machines(*rates, per_node=1)
    free = solve_with(given(cluster), strategy)
    ways = reductions(cluster, range(cluster.size))
    pinned = [solve_with(given(cluster, f"reduction={way}"), strategy).plan for way in ways]
    assert len(pinned) == len(("flat", "server"))
    assert free.plan.ledger is not None and free.bound is not None
    seconds = [one.ledger.step_seconds for one in pinned if one.ledger is not None]
    assert free.plan.ledger.step_seconds == pytest.approx(min(seconds))
    assert free.bound <= min(seconds) * (1 + 1e-9)
    for one in (free.plan, *pinned):
        assert one.ledger is not None and estimate(replace(one, ledger=None)) == one.ledger


def test_the_search_takes_replicas_where_a_server_makes_them_pay() -> None:
    cluster = machines(1.8e7, 2e8, 1.8e7, per_node=1)
    free, flat = (solve_with(given(cluster, *pins), "stages").plan for pins in ((), ("reduction=flat",)))
    assert [(stage.reduction, stage.replicas) for stage in free.stages] == [("server", 3)]
    assert [stage.replicas for stage in flat.stages] == [1, 1, 1]
    assert free.ledger is not None and flat.ledger is not None
    assert free.ledger.step_seconds < flat.ledger.step_seconds
    assert free.bound is not None and free.bound <= free.ledger.step_seconds


@pytest.mark.parametrize("way", WAYS)
def test_a_pinned_way_is_that_of_every_stage_that_has_it(way: Reduction) -> None:
    found = solve_with(given(machines(1e8, 1e8), "data=4", "shard=none", f"reduction={way}"), "auto").plan
    assert {stage.reduction for stage in found.stages} == {way}


def test_a_pin_is_written_as_it_was_read() -> None:
    pins = given(machines(1e8, 1e8), "reduction=server").pins
    assert pins == Pins(reduction="server") and pin_texts(pins) == ("reduction=server",)


def test_a_plan_without_such_sums_says_so() -> None:
    found = solve_with(given(machines(1e8, 1e8, per_node=1), "pipeline=2", "reduction=server"), "auto").plan
    assert any("pin reduction=server: no stage sums" in said for said in found.assumptions)


@pytest.mark.parametrize(
    ("pins", "cluster", "why"),
    [
        (("reduction=server",), problems.cluster(CPU, CPU), "over CPUs on several nodes, elsewhere"),
        (("reduction=hierarchical",), machines(1e8, 1e8, per_node=1), "CPUs on several nodes, some of them on one"),
        (("reduction=server", "data=1"), machines(1e8, 1e8), "pins reduction=server and data=1 contradict"),
        (("reduction=server", "shard=parameters"), machines(1e8, 1e8), "only whole gradients are summed so"),
        (("reduction=tree",), machines(1e8, 1e8), "wants one of flat, hierarchical, server; found 'tree'"),
    ],
)
def test_a_way_that_cannot_be_is_refused_by_name(pins: tuple[str, ...], cluster: Cluster, why: str) -> None:
    for strategy in ("stages", "auto", "local"):
        with pytest.raises(UsageError, match=why):
            solve_with(given(cluster, *pins), strategy)
