"""What one message and one collective get of the links on their way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters import link_between
from placer.cluster.cluster import Cluster, Curve, Device, Level, Link, Node
from placer.cluster.topology import bottleneck
from placer.errors import UsageError

DEVICE = Device(
    name="chip", backend="cuda", memory_bytes=2**30, memory_bandwidth=1e12, rates=(("float32", 1e12),),
    launch_seconds=1e-6, curve=Curve(points=((1.0, 1.0),)),
)  # fmt: skip
INSIDE = Link(name="inside", latency_seconds=1e-6, bandwidth=100e9, share=0.9, collective_share=0.8)
NIC = Link(name="nic", latency_seconds=2e-6, bandwidth=10e9, ports=4, share=0.5)
NODE = Node(name="node", devices=((DEVICE, 8),), link=INSIDE, nic=NIC)
RACK = Level(name="rack", nodes=2, link=Link(name="rack", latency_seconds=3e-6, bandwidth=30e9))
SPINE = Level(name="spine", link=Link(name="spine", latency_seconds=5e-6, bandwidth=4e9))
CLUSTER = Cluster(name="test", groups=((NODE, 4),), levels=(RACK, SPINE))


def test_a_message_inside_a_node_gets_the_achieved_share_of_its_link() -> None:
    link = link_between(CLUSTER, 0, 7)
    assert (link.latency_seconds, link.bandwidth) == (1e-6, 100e9 * 0.9)


def test_a_message_between_nodes_gets_one_port_and_every_levels_latency() -> None:
    in_rack, over_spine = link_between(CLUSTER, 0, 8), link_between(CLUSTER, 0, 31)
    assert [in_rack.latency_seconds, in_rack.bandwidth] == pytest.approx([2e-6 + 3e-6, 10e9 * 0.5])
    assert [over_spine.latency_seconds, over_spine.bandwidth] == pytest.approx([2e-6 + 3e-6 + 5e-6, 4e9])


def test_a_message_to_oneself_takes_no_time() -> None:
    assert link_between(CLUSTER, 3, 3).seconds(1e12) == 0


def test_devices_that_send_at_once_share_the_ports_of_a_nic() -> None:
    in_rack = bottleneck(CLUSTER, range(16))
    assert in_rack.inter is not None and in_rack.intra is not None
    assert (in_rack.nodes, in_rack.per_node, in_rack.devices) == (2, 8, 16)
    assert in_rack.intra.bandwidth == pytest.approx(100e9 * 0.8)
    assert in_rack.inter.bandwidth == pytest.approx(4 * 10e9 * 0.5 / 8)


def test_rings_side_by_side_share_what_one_would_have_alone() -> None:
    alone, crowded = bottleneck(CLUSTER, (0, 8)), bottleneck(CLUSTER, (0, 8), senders=8)
    assert alone.inter is not None and crowded.inter is not None and alone.intra is None
    assert alone.inter.bandwidth == 10e9 * 0.5
    assert crowded.inter.bandwidth == pytest.approx(4 * 10e9 * 0.5 / 8)


def test_peer_links_serve_a_pair_one_by_one() -> None:
    peers = replace(NODE, link=Link(name="peer", latency_seconds=1e-6, bandwidth=64e9, ports=7))
    cluster = Cluster(name="peers", groups=((peers, 1),))
    two, eight = bottleneck(cluster, (0, 1)), bottleneck(cluster, range(8))
    assert two.intra is not None and eight.intra is not None
    assert (two.intra.bandwidth, eight.intra.bandwidth) == (64e9, 7 * 64e9)


def test_a_collective_inside_one_node_crosses_no_network() -> None:
    levels = bottleneck(CLUSTER, range(8))
    assert levels.inter is None and levels.nodes == 1 and levels.even


def test_unequal_parts_of_nodes_are_said_to_be_uneven() -> None:
    assert not bottleneck(CLUSTER, (0, 1, 8)).even


def test_nodes_without_any_way_between_them_are_refused() -> None:
    cluster = Cluster(name="islands", groups=((replace(NODE, nic=None), 2),))
    with pytest.raises(UsageError, match="no way"):
        link_between(cluster, 0, 8)


@given(first=st.integers(0, 31), second=st.integers(0, 31))
def test_a_message_is_as_fast_there_as_back(first: int, second: int) -> None:
    assert link_between(CLUSTER, first, second) == link_between(CLUSTER, second, first)


@given(st.sets(st.integers(0, 31), min_size=2), st.floats(1.0, 10.0))
def test_a_wider_spine_never_narrows_a_collective(devices: set[int], factor: float) -> None:
    wide = replace(SPINE, link=replace(SPINE.link, bandwidth=SPINE.link.bandwidth * factor))
    before = bottleneck(CLUSTER, devices)
    after = bottleneck(replace(CLUSTER, levels=(RACK, wide)), devices)
    if before.inter is not None and after.inter is not None:
        assert after.inter.bandwidth >= before.inter.bandwidth


def test_an_efficiency_curve_is_a_line_in_the_logarithm_of_size_and_flat_outside() -> None:
    curve = Curve(points=((1e6, 0.2), (1e8, 0.8)))
    assert [curve.share(size) for size in (1.0, 1e6, 1e8, 1e12)] == [0.2, 0.2, 0.8, 0.8]
    assert curve.share(1e7) == pytest.approx(0.5)
