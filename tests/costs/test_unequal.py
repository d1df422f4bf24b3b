"""Unequal devices: never worse than leaving slow ones out, and better than taking all for alike where that exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from examples.measured.unequal import best_alike
from graphs import BlockSpec, chain_graph
from placer.cluster.cluster import Cluster, Device, Level, Link, Node
from placer.errors import InfeasibleError
from placer.legality import check
from placer.plans.plan import Plan
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.strategies.inter_op import search as stages
from placer.strategies.space.device_orders import device_orders, fast_subclusters, subcluster
from problems import cluster, device, problem, unequal_problem

FAST, SLOW = device(rate=4e12, name="fast"), device(rate=1e12, name="slow")
WORK = BlockSpec(flops=10**8, parameters=1000, saved=1000, output=100, traffic=1000)
SEEDS = range(24)


def nodes_of(*groups: tuple[Device, int, float]) -> Cluster:
    """A node of so many devices each, with a way out of so many bytes a second."""
    inside = Link(name="inside", latency_seconds=1e-6, bandwidth=1e11)
    made = tuple(
        Node(
            name=f"node{i}", devices=((chip, count),), link=inside,
            nic=Link(name="nic", latency_seconds=5e-6, bandwidth=bandwidth),
        )
        for i, (chip, count, bandwidth) in enumerate(groups)
    )  # fmt: skip
    fabric = Link(name="fabric", latency_seconds=0.0, bandwidth=1e12)
    return Cluster(name="nodes", groups=tuple((node, 1) for node in made), levels=(Level(name="fabric", link=fabric),))


def planned(given: Problem, name: str = "stages") -> Plan:
    return solve_with(given, name).plan


def seconds(given: Problem, name: str = "stages") -> float:
    """Seconds of a step; infinite where nothing fits."""
    try:
        ledger = planned(given, name).ledger
    except InfeasibleError:
        return float("inf")
    assert ledger is not None
    return ledger.step_seconds


def parts_of(machines: Cluster) -> Iterator[Cluster]:
    """The cluster without each kind of device, and without each node."""
    for left_out in {chip.name for chip in machines.devices}:
        kept = frozenset(d for d, chip in enumerate(machines.devices) if chip.name != left_out)
        if kept:
            yield subcluster(machines, kept).cluster
    for node in range(len(machines.nodes) if len(machines.nodes) > 1 else 0):
        yield subcluster(machines, frozenset(d for d, n in enumerate(machines.node_of) if n != node)).cluster


@pytest.mark.in_turns
def test_a_mix_is_never_worse_than_what_is_left_without_some_of_its_devices() -> None:
    compared = 0
    for seed in SEEDS:
        given = unequal_problem(seed)
        whole = seconds(given)
        for left in parts_of(given.cluster):
            compared += 1
            assert whole <= seconds(replace(given, cluster=left)) * (1 + 1e-9), f"problem {seed} on {left.groups}"
    assert compared > 40


@pytest.mark.in_turns
def test_ours_beats_taking_all_devices_for_alike_wherever_the_enumeration_does() -> None:
    beaten = 0
    for seed in SEEDS:
        given = unequal_problem(seed)
        alike = best_alike(given)
        if alike is None or alike.ledger is None:
            continue
        wanted, ours = seconds(given, "exhaustive"), seconds(given)
        assert ours <= alike.ledger.step_seconds * (1 + 1e-9)
        if wanted < alike.ledger.step_seconds * (1 - 1e-9):
            beaten += 1
            assert ours < alike.ledger.step_seconds * (1 - 1e-9), f"problem {seed}"
    assert beaten >= 5


def test_a_device_four_times_as_fast_takes_about_four_times_the_rows() -> None:
    plan = planned(problem(chain_graph([WORK] * 4, rows=64), cluster(FAST, SLOW)))
    (stage,) = plan.stages
    fast, slow = stage.shares
    assert plan.world_size == 2
    assert 3 <= fast / slow <= 5


def test_data_parallel_sets_shares_as_one_would_by_hand() -> None:
    given = problem(chain_graph([WORK] * 4, rows=40), cluster(FAST, SLOW))
    (stage,) = planned(given, "data").stages
    assert stage.shares == (4, 1)


def test_alike_devices_share_equally_and_stand_in_cluster_order() -> None:
    for machines in (cluster(*[FAST] * 4), nodes_of((FAST, 2, 1e10), (FAST, 2, 1e10))):
        plan = planned(problem(chain_graph([WORK] * 4, rows=8), machines))
        assert not any(stage.shares for stage in plan.stages)
        assert plan.ranks == tuple(range(plan.world_size))


def test_a_slow_device_gets_fewer_blocks_of_a_pipeline() -> None:
    state = BlockSpec(flops=10**8, parameters=2**20, saved=1000, output=100, traffic=1000)
    small = (replace(FAST, memory_bytes=7 * 2**24), replace(SLOW, memory_bytes=7 * 2**24))
    thin = Link(name="thin", latency_seconds=1e-5, bandwidth=1e8)
    given = problem(chain_graph([state] * 5, rows=8), cluster(*small, link=thin), pins=Pins(pipeline=2))
    plan = planned(given)
    blocks = {plan.cluster.devices[s.devices[0]].name: s.last - s.first for s in plan.stages}
    assert plan.positions == 2
    assert blocks["slow"] < blocks["fast"]


def test_a_device_too_slow_to_help_is_left_out() -> None:
    plan = planned(problem(chain_graph([WORK] * 4, rows=4), cluster(device(rate=1e9, name="snail"), FAST, FAST)))
    assert set(plan.ranks) == {1, 2}


def test_a_device_with_less_memory_takes_fewer_rows() -> None:
    wide = BlockSpec(flops=10**8, parameters=1000, saved=2**20, output=100, traffic=1000)
    large, small = device(memory=2**26, name="large"), device(memory=2**24, name="small")
    pins = Pins(data=2, pipeline=1, microbatches=1, recompute=False)
    plan = planned(problem(chain_graph([wide] * 2, rows=16), cluster(small, large), pins=pins))
    assert not check(plan)
    rows = dict(zip(plan.ranks, plan.stages[0].shares, strict=True))
    assert rows[0] < rows[1]
    with pytest.raises(InfeasibleError):
        planned(problem(chain_graph([wide] * 2, rows=16), cluster(small, small), pins=pins))


def test_replicas_stand_inside_nodes_and_pipelines_cross_slow_links() -> None:
    heavy = BlockSpec(flops=10**9, parameters=2**21, saved=1000, output=10, traffic=1000)
    machines = nodes_of((FAST, 2, 1e8), (replace(FAST, name="other"), 2, 1e8))
    plan = planned(problem(chain_graph([heavy] * 4, rows=16), machines, pins=Pins(pipeline=2, data=2)))
    for stage in plan.stages:
        assert len({machines.node_of[d] for d in stage.devices}) == 1


def test_lineups_leave_classes_out_and_turn_them_round() -> None:
    machines = nodes_of((FAST, 2, 1e10), (SLOW, 4, 1e10))
    found = device_orders(machines, 2, 2, 1)
    assert found[0] == ()
    assert (2, 3, 4, 5) in found  # the slow ones alone
    assert (2, 3, 0, 1) not in found  # every class but the last is used up
    assert (0, 2, 1, 3) in found  # replicas, each of one class
    assert len(set(found)) == len(found)


@pytest.mark.in_turns
def test_a_search_cut_short_still_uses_what_the_fast_part_alone_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "LARGE", 0)
    monkeypatch.setattr(stages, "LARGE_GAP", 0.9)
    for seed in SEEDS:
        given = unequal_problem(seed)
        for fast in fast_subclusters(given.cluster):
            assert seconds(given) <= seconds(replace(given, cluster=fast.cluster)) * (1 + 1e-9), f"problem {seed}"
