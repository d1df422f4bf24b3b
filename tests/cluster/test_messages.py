"""What messages that move at once get of the nics and levels that they cross."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.cluster.cluster import Cluster, Level, Link, Node
from placer.costs.communication.network import Network, message_seconds
from problems import device

SIZE = 100 * 10**6
INSIDE = Link(name="inside", latency_seconds=0.0, bandwidth=1e12)
# Of one port.
PORT = Link(name="port", latency_seconds=0.0, bandwidth=10e9)


def pair(nic: Link | None, level: Link, *, devices: tuple[int, int] = (8, 8)) -> Cluster:
    """Two nodes with such a way out, on such a level."""
    groups = tuple((Node(name="node", devices=((device(), n),), link=INSIDE, nic=nic), 1) for n in devices)
    return Cluster(name="pair", groups=groups, levels=(Level(name="level", link=level),))


def on(cluster: Cluster, count: int) -> float:
    """Seconds of `SIZE` bytes from each of so many devices of the first node to one of the second."""
    second = cluster.nodes[0].size
    return message_seconds(cluster, range(count), range(second, second + count), SIZE)


@pytest.mark.parametrize("senders", [1, 2, 8])
def test_messages_of_a_node_share_what_a_level_has_for_it(senders: int) -> None:
    wide = replace(PORT, ports=8)
    assert on(pair(wide, PORT), senders) == pytest.approx(senders * SIZE / 10e9)
    assert on(pair(wide, wide), senders) == pytest.approx(SIZE / 10e9)
    assert on(pair(None, wide), senders) == pytest.approx(SIZE / 10e9)
    assert on(pair(None, PORT), senders) == pytest.approx(senders * SIZE / 10e9)


def test_the_examples_networks_are_shared_by_the_messages_of_a_node() -> None:
    lab, racks = (Cluster.load(f"examples/{name}.yaml") for name in ("cluster", "racks"))
    latency = message_seconds(lab, range(8), range(8, 16), 0)
    # One port of 400 Gb/s, of which 95% are achieved, for eight devices.
    assert message_seconds(lab, range(8), range(8, 16), SIZE) == pytest.approx(latency + 8 * SIZE / (50e9 * 0.95))
    latency = message_seconds(racks, range(8), range(64, 72), 0)
    assert message_seconds(racks, range(8), range(64, 72), SIZE) == pytest.approx(latency + 8 * SIZE / 50e9)
    # Within a rack the level has 25 GB/s for each; its own port of 200 Gb/s, of which 96% are achieved, has less.
    latency = message_seconds(racks, range(8), range(8, 16), 0)
    assert message_seconds(racks, range(8), range(8, 16), SIZE) == pytest.approx(latency + SIZE / (25e9 * 0.96))


def test_what_enters_a_node_shares_its_way_in() -> None:
    """Four devices of a node with one port speak to two nodes of two: 4 x 100 MB at 10 GB/s, whichever sends."""
    cluster = Cluster.load("t4x4*1@100gbe+t4x2*2@100gbe")
    latency = message_seconds(cluster, (0,), (4,), 0)
    for source, target in (((0, 1, 2, 3), (4, 5, 6, 7)), ((4, 5, 6, 7), (0, 1, 2, 3))):
        both = Network(cluster).transfer(source, target, sent=SIZE, returned=SIZE)
        assert [both.forward, both.backward] == pytest.approx([latency + 4 * SIZE / (12.5e9 * 0.8)] * 2)
        assert message_seconds(cluster, source, target, SIZE) == both.forward
        parcels = [(a, b, SIZE) for a, b in zip(source, target, strict=True)]
        assert Network(cluster).exchange(parcels) == pytest.approx(both.forward)


def test_the_ports_of_either_end_serve_what_crosses_them() -> None:
    many = Cluster(
        name="star",
        groups=(
            (Node(name="hub", devices=((device(), 4),), link=INSIDE, nic=replace(PORT, ports=4)), 1),
            (Node(name="leaf", devices=((device(), 1),), link=INSIDE, nic=PORT), 4),
        ),
        levels=(Level(name="level", link=replace(PORT, ports=4)),),
    )
    hub, leaves = (0, 1, 2, 3), (4, 5, 6, 7)
    assert message_seconds(many, hub, leaves, SIZE) == pytest.approx(SIZE / 10e9)
    assert message_seconds(many, leaves, hub, SIZE) == pytest.approx(SIZE / 10e9)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_devices_that_speak_to_one_after_another_have_the_port_to_themselves(count: int) -> None:
    """What one sends to several, or several to one, the port takes once, all of it."""
    network = Network(pair(PORT, PORT, devices=(4, 4)))
    parcels = [(0, 4 + n, SIZE) for n in range(count)]
    back = [(target, source, size) for source, target, size in parcels]
    assert network.exchange(parcels) == network.exchange(back) == pytest.approx(count * SIZE / 10e9)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2, 3]))
def test_rows_that_leave_a_node_take_as_long_there_as_back(first: int, second: int, third: int, ports: int) -> None:
    """Each of n devices of one node sends to each of m others on two, of which one at a time."""
    nic = replace(PORT, ports=ports)
    groups = tuple((Node(name="node", devices=((device(), 4),), link=INSIDE, nic=nic), 1) for _ in range(3))
    machines = Cluster(name="three", groups=groups, levels=(Level(name="level", link=nic),))
    sources, targets = range(first), (*range(4, 4 + second), *range(8, 8 + third))
    found = []
    for a, b in ((sources, targets), (targets, sources)):
        ways = Network(machines).link_costs((x, y) for x in a for y in b)
        found.append(max(way.per_byte for way in ways.values()))
    flows = min(first, second + third)
    assert found == pytest.approx([flows / min(flows, ports) / 10e9] * 2)


def test_parcels_share_a_level_too() -> None:
    network = Network(pair(replace(PORT, ports=8), PORT))
    assert network.exchange([(n, 8 + n, SIZE) for n in range(8)]) == pytest.approx(8 * SIZE / 10e9)
