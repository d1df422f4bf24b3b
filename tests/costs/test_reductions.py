"""Ways of replicas on several hosts to sum their gradients: what each costs, and that all of them give the sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixed_ranks
from mixed_plans import CPU, PCIE, machines
from placer.cluster.cluster import Cluster, Link, Node
from placer.costs.communication.mixed_allreduce import PASSES
from placer.costs.communication.reductions import (
    GlooSum,
    piece_bytes,
    reduction_seconds,
    reductions,
    server_of,
)
from placer.plans.plan import Reduction
from placer.program.reductions import ServerRoute, pieces, reduction_route
from pool import on_ranks

MIB = 2**20
NIC = Link(name="nic", latency_seconds=2e-5, bandwidth=1e7, setup_seconds=1e-4)


def nodes(*links: float, per_node: int = 1) -> Cluster:
    """Nodes of so many CPUs, with a way out of so many bytes a second each, or of `NIC` times so much."""
    made = tuple(
        (Node(name=f"n{i}", devices=((CPU, per_node),), link=PCIE, nic=replace(NIC, bandwidth=rate * 1e7)), 1)
        for i, rate in enumerate(links)
    )
    return Cluster(name="made", groups=made)


def seconds(cluster: Cluster, size: float) -> dict[Reduction, float]:
    return reduction_seconds(cluster, tuple(range(cluster.size)), size)


def test_gloo_sums_in_a_ring() -> None:
    adding = PASSES * 2 / 3 * MIB / CPU.memory_bandwidth
    assert seconds(nodes(1, 1, 1), MIB)["flat"] == pytest.approx(1e-4 + 4 * 2e-5 + 4 / 3 * MIB / 1e7 + adding)


def test_a_ring_sends_out_of_a_node_once_and_two_levels_send_less() -> None:
    found = seconds(nodes(1, 1, per_node=2), MIB)
    assert found["flat"] == pytest.approx(1.5 * MIB / 1e7, rel=0.02)
    assert found["hierarchical"] == pytest.approx(MIB / 1e7, rel=0.02)
    assert found["server"] == pytest.approx(2 * (MIB + piece_bytes(MIB)) / 1e7, rel=0.02)


def test_a_server_is_on_the_fastest_link_and_beats_a_ring_there() -> None:
    cluster = nodes(1, 4, 1)
    assert server_of(cluster, (0, 1, 2)) == 1
    found = seconds(cluster, MIB)
    assert found["server"] == pytest.approx((MIB + piece_bytes(MIB)) / 1e7, rel=0.02)
    assert found["server"] < found["flat"] == pytest.approx(4 / 3 * MIB / 1e7, rel=0.02)


def test_gpus_and_replicas_on_one_node_leave_it_to_their_library() -> None:
    assert reductions(machines(2, 0, nodes=2), (0, 1, 2, 3)) == ("flat",)
    assert reductions(machines(0, 2, nodes=2), (0, 1)) == ("flat",)
    assert reductions(machines(0, 2, nodes=2), (0, 2)) == ("flat", "server")
    assert reductions(machines(0, 2, nodes=2), (0, 1, 2)) == ("flat", "hierarchical", "server")


@given(
    size=st.integers(1, 2**26), more=st.integers(1, 2**20), rates=st.lists(st.floats(0.1, 10), min_size=2, max_size=4)
)
def test_more_bytes_and_less_bandwidth_never_take_less(size: int, more: int, rates: list[float]) -> None:
    cluster, slower = nodes(*rates, per_node=2), nodes(*(rate / 2 for rate in rates), per_node=2)
    least, most, late = seconds(cluster, size), seconds(cluster, size + more), seconds(slower, size)
    assert all(least[way] <= most[way] and least[way] <= late[way] for way in least)


@given(size=st.integers(1, 2**26), rates=st.lists(st.floats(0.1, 10), min_size=2, max_size=4))
def test_groups_at_once_share_the_way_out(size: int, rates: list[float]) -> None:
    cluster = nodes(*rates)
    one, both = (GlooSum(cluster, tuple(range(cluster.size)), groups) for groups in (1, 2))
    assert all(one.seconds(way, size) < both.seconds(way, size) for way in ("flat", "server"))


@given(size=st.integers(1, 2**24), item=st.sampled_from((2, 4, 8)))
def test_pieces_are_whole_elements_one_behind_the_other(size: int, item: int) -> None:
    found = pieces(size * item, item)
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == size * item and all(start % item == 0 for start, _ in found)


def test_a_route_names_ranks_not_devices() -> None:
    cluster = nodes(1, 4, 1, per_node=2)
    server = reduction_route(cluster, (5, 3, 0), (7, 8, 9), "server")
    assert server == ServerRoute(server=8, served=(7, 9))
    hosts = reduction_route(cluster, (5, 4, 0), (7, 8, 9), "hierarchical")
    assert hosts is not None and hosts.groups == ((7, 8), (9,), (7, 9))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_way_sums_exactly_and_as_its_messages_say(world: int) -> None:
    assert on_ranks(world, mixed_ranks.summed_over_hosts, world) == [[]] * world
