"""What bytes cross between devices: one message between two of them, and the levels a collective climbs.

In: a Cluster and device numbers. Out: effective links, achieved shares of the nominal bandwidths included:

    message inside a node       latency(link), bandwidth(link) * share
    message between nodes       latency(nic) + sum of latency(level); the slowest of both nics and every level, each
                                shared by the messages of its node that cross it at once, of which one fills one port
    collective inside a node    what k of its devices reach together: min(ports, k - 1) of the link's ports
    CPUs in a node with GPUs    the loopback between their processes, in messages and collectives
    collective between nodes    what k devices of a node that send at once reach: the nic, then every level, / k
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from placer.cluster.cluster import Cluster, Device, Link, Node
from placer.errors import UsageError

# What gloo does between two processes of one machine, whose core sends and receives in turn.
LOOPBACK = Link(
    name="loopback", latency_seconds=1e-4, bandwidth=1.8e9, collective_share=0.46,
    source="measured 22 November 2026, torch 2.13, on 2 cores of an EPYC beside other work, the best of 14: one way of "
    "4 KiB 101 us, of 64 MiB 37 ms; 64 MiB all-reduced by two 86 ms, 5 of them for the additions",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The levels a collective over some devices climbs, seen by one device.

    intra: link between the devices of a node (None where no node holds two of them); inter: link between nodes, its
    bandwidth what ONE device gets while `senders` devices of each node send at once (None within one node).
    Bandwidths are achieved ones (shares applied), per device and direction.
    """

    devices: int
    nodes: int
    per_node: int
    senders: int
    intra: Link | None
    inter: Link | None

    @property
    def even(self) -> bool:
        """Whether every node holds the same number of the devices."""
        return self.nodes * self.per_node == self.devices


def replica_groups(cluster: Cluster, degree: int) -> tuple[tuple[int, ...], ...]:
    """The groups of `degree` devices that may be a replica, in order: alike devices of one node, next to each other.

    Of a node each kind of chip is grouped by itself, then those that are left over of all its kinds, in order. More
    devices than any node has are taken node after node, where `degree` is a multiple of the largest node. Devices that
    are left over then are in no group, nor are GPUs and CPUs in one: nothing reduces over both while they compute.
    """
    if degree == 1:
        return tuple((device,) for device in range(cluster.size))
    largest = max(node.size for node, _ in cluster.groups)
    if degree > largest:
        whole = cluster.size // degree if degree % largest == 0 else 0
        every = (tuple(range(start, start + degree)) for start in range(0, whole * degree, degree))
        return tuple(devices for devices in every if not cluster.unlike(devices))
    found, start = [], 0
    for node in cluster.nodes:
        found += _grouped(cluster.devices, range(start, start + node.size), degree)
        start += node.size
    return tuple(devices for devices in found if not cluster.unlike(devices))


def link_between_nodes(
    cluster: Cluster, start: int, end: int, leaving: int = 1, entering: int = 1, *, collective: bool = False
) -> Link:
    """The effective link of one message from a device of node `start` to another device, of node `end`.

    leaving, entering: so many messages leave the first node and enter the second one at once; of its nic, and of what
    each level has for a node, one of them gets its part. collective: they are a collective's, whose share of the
    bandwidth is another.
    """
    if start == end:
        link = cluster.nodes[start].link
        return effective(link, link.bandwidth * (link.shared if collective else link.share))
    return _slowest(cluster, {start: leaving, end: entering}, collective=collective)


def link_between_processes(node: Node) -> Link:
    """The link between processes of a host for what lies in its memory: where there are GPUs its link is theirs."""
    return LOOPBACK if node.size == 1 or any(device.backend != "cpu" for device, _ in node.devices) else node.link


def bottleneck(cluster: Cluster, devices: Collection[int], senders: int = 0, groups: int = 1) -> Bottleneck:
    """The levels of a collective over `devices`; `senders` devices per node send at once (0: those in `devices`).

    groups: so many collectives like this one run at once, each on devices of its own on the same nodes.
    """
    per_node = Counter(cluster.node_of[d] for d in devices)
    most = max(per_node.values())
    together = max(senders, most * groups)
    return Bottleneck(
        devices=len(set(devices)),
        nodes=len(per_node),
        per_node=most,
        senders=together,
        intra=_inside(cluster, per_node, _on_cpus(cluster, devices)) if most > 1 else None,
        inter=_slowest(cluster, dict.fromkeys(per_node, together), collective=True) if len(per_node) > 1 else None,
    )


def effective(link: Link, bandwidth: float, latency: float | None = None) -> Link:
    """`link` with the achieved bandwidth as its nominal one."""
    return Link(
        name=link.name,
        latency_seconds=link.latency_seconds if latency is None else latency,
        bandwidth=bandwidth,
        setup_seconds=link.setup_seconds,
        source=link.source,
    )


def _grouped(chips: tuple[Device, ...], own: range, degree: int) -> list[tuple[int, ...]]:
    """The replicas that the devices of one node make, those of a kind together as far as they go."""
    if chips[own[0]] is chips[own[-1]] and len({id(chips[d]) for d in own}) == 1:
        kinds = [tuple(own)]
    else:
        kinds = [tuple(d for d in own if chips[d] == kind) for kind in dict.fromkeys(chips[d] for d in own)]
    left = sorted(d for kind in kinds for d in kind[len(kind) // degree * degree :]) if len(kinds) > 1 else ()
    lines = (*kinds, tuple(left))
    return [line[at : at + degree] for line in lines for at in range(0, len(line) // degree * degree, degree)]


def _on_cpus(cluster: Cluster, devices: Collection[int]) -> bool:
    """Whether all of `devices` are CPUs, in a cluster that has GPUs too."""
    return len(cluster.backends) > 1 and all(cluster.devices[device].backend == "cpu" for device in devices)


def _inside(cluster: Cluster, per_node: Counter[int], processes: bool) -> Link:
    """The slowest node's link as its share of the devices sees it together; `processes`: that between processes."""
    nodes = {node: cluster.nodes[node] for node in per_node}
    of_node = {node: link_between_processes(own) if processes else own.link for node, own in nodes.items()}
    found = {(id(of_node[node]), count): of_node[node] for node, count in per_node.items()}
    links = (
        effective(link, link.bandwidth * link.shared * min(link.ports, count - 1))
        for (_, count), link in found.items()
        if count > 1
    )
    return min(links, key=lambda link: link.bandwidth)


def _slowest(cluster: Cluster, flows: Mapping[int, int], *, collective: bool) -> Link:
    """The narrowest thing on the way between nodes, its bandwidth divided among the `flows` of each of them."""
    each = ((cluster.nodes[node].nic, flows[node]) for node in sorted(flows))
    nics = {(id(nic), count): (nic, count) for nic, count in each}.values()
    ways = [(nic, count) for nic, count in nics if nic is not None]
    levels = [level.link for level in cluster.levels[: cluster.level_of(set(flows)) + 1]]
    if len(ways) < len(nics) and not levels:
        raise UsageError(
            f"cluster {cluster.name}: nodes {sorted(flows)} have no way to each other; "
            "give each node a nic or the cluster a network"
        )
    latency = max((nic.latency_seconds for nic, _ in ways), default=0.0) + sum(link.latency_seconds for link in levels)
    ways += [(link, max(flows.values())) for link in levels]
    bandwidth, narrowest = min(
        ((_per_device(link, count, collective=collective), link) for link, count in ways), key=lambda way: way[0]
    )
    found = effective(narrowest, bandwidth, latency)
    return replace(found, setup_seconds=max(link.setup_seconds for link, _ in ways))


def _per_device(link: Link, senders: int, *, collective: bool) -> float:
    """What one of `senders` devices gets of a node's way; one device alone fills one port."""
    share = link.shared if collective else link.share
    return link.bandwidth * share * min(senders, link.ports) / senders
