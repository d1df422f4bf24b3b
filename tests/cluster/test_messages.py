"""What messages that move at once get of the nics and levels that they cross."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def test_parcels_share_a_level_too() -> None:
    network = Network(pair(replace(PORT, ports=8), PORT))
    assert network.exchange([(n, 8 + n, SIZE) for n in range(8)]) == pytest.approx(8 * SIZE / 10e9)
