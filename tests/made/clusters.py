"""Hand-made clusters for tests."""

from __future__ import annotations

from dataclasses import replace

from placer.cluster.cluster import Cluster, Curve, Device, Host, Level, Link, Node
from placer.cluster.topology import link_between_nodes

FAST = Device(
    name="fast", backend="cuda", memory_bytes=80 * 2**30, memory_bandwidth=2e12,
    rates=(("float32", 2e13), ("bfloat16", 3e14), ("float16", 3e14)), launch_seconds=4e-6,
    curve=Curve(points=((1e6, 0.05), (1e9, 0.5), (1e11, 0.85))), memory_share=0.9, overhead_bytes=2**30,
    multiprocessors=108,
)  # fmt: skip
SLOW = Device(
    name="slow", backend="cpu", memory_bytes=8 * 2**30, memory_bandwidth=2e10, rates=(("float32", 1e11),),
    launch_seconds=2e-6, curve=Curve(points=((1e4, 0.2), (1e8, 0.9))),
)  # fmt: skip
INSIDE = Link(name="inside", latency_seconds=3e-6, bandwidth=3e11, share=0.8)
OUT = Link(name="out", latency_seconds=1e-5, bandwidth=5e10, ports=2, share=0.9)

SAME_DEVICE = Link(name="same device", latency_seconds=0.0, bandwidth=float("inf"), source="no bytes move")


def cluster(
    *, nodes: int = 1, per_node: int = 8, device: Device = FAST, inside: Link = INSIDE, out: Link = OUT
) -> Cluster:
    """`nodes` equal nodes of `per_node` devices."""
    node = Node(name="node", devices=((device, per_node),), link=inside, nic=out)
    return Cluster(name="made", groups=((node, nodes),), levels=(Level(name="switch", link=out),))


def with_host(machines: Cluster, memory_bytes: int = 0) -> Cluster:
    """The same, whose nodes say what their hosts are; 0: not how much memory they have."""
    host = Host(link=Link(name="host", latency_seconds=1e-5, bandwidth=5e10, share=0.8), memory_bandwidth=4e11)
    return replace(
        machines,
        groups=tuple((replace(node, host=host, memory_bytes=memory_bytes), count) for node, count in machines.groups),
    )


def link_between(cluster: Cluster, first: int, second: int) -> Link:
    """The effective link of one message from device `first` to device `second` with nothing else on the way."""
    if first == second:
        return SAME_DEVICE
    return link_between_nodes(cluster, cluster.node_of[first], cluster.node_of[second])
