"""Seconds of collectives over a set of devices, by algorithm and level of the network.

With k devices, n bytes (of the full buffer), latency a, bandwidth w per device and direction, setup c:

    ring all_reduce            c + 2 (k-1) a + 2 (k-1)/k n / w             (Thakur et al. 2005, eq. for ring)
    tree all_reduce            c + 2 log2(k) a + 2 n / w                   (NCCL 2.4 double binary trees)
    ring reduce_scatter        c + (k-1) a + (k-1)/k n / w                 the same for all_gather
    all_to_all                 c + (k-1) a + (k-1)/k (n/k) / w             n: what all devices hold together
    hierarchical all_reduce    reduce_scatter in the node, all_reduce of n / per_node between nodes, all_gather in it
    flat ring                  one ring through all devices; w the slower of the node's link and the node's way out

The fastest applicable algorithm is taken, as NCCL's tuner does; all of them grow with bytes and latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import cycle, islice
from math import ceil, log2
from typing import Literal, NamedTuple, TypeAlias

from placer.cluster.cluster import Cluster, Link
from placer.cluster.topology import Bottleneck, bottleneck, link_between_nodes, link_between_processes

# Of a message, whether each end is a CPU; () where all devices are of one kind.
_OnCpus: TypeAlias = tuple[bool, ...]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def collective_seconds(
    cluster: Cluster, kind: CollectiveKind, devices: Collection[int], size: float, *, senders: int = 0
) -> float:
    """Seconds of a collective over `devices` on a buffer of `size` bytes; `senders` devices per node send at once."""
    if len(devices) < 2:
        return 0.0
    return over_levels(bottleneck(cluster, devices, senders), kind, size)


def over_levels(levels: Bottleneck, kind: CollectiveKind, size: float) -> float:
    """Seconds of a collective over the given levels."""
    if kind == "all_to_all":
        return _exchange(levels, size)
    if levels.inter is None:
        assert levels.intra is not None
        return _flat(levels.intra, levels.devices, kind, size)
    if levels.intra is None:
        return _flat(levels.inter, levels.devices, kind, size)
    return min(_across(levels, levels.intra, levels.inter, kind, size), _through(levels, kind, size))


def message_seconds(cluster: Cluster, source: Collection[int], target: Collection[int], size: float) -> float:
    """Seconds until every device of `source` has sent `size` bytes to its partner in `target`, all at once.

    Partners are paired in order (of unequal counts, in turn). Devices of one node that send out together share its nic.
    """
    return max((way.seconds(size) for way in link_costs(cluster, source, target)), default=0.0)


class LinkCost(NamedTuple):
    """One kind of way that messages take at once: seconds of an empty one, seconds per byte."""

    latency: float
    per_byte: float

    def seconds(self, size: float) -> float:
        """Seconds of a message of `size` bytes."""
        return self.latency + size * self.per_byte


def link_costs(cluster: Cluster, source: Collection[int], target: Collection[int]) -> tuple[LinkCost, ...]:
    """The kinds of ways from the devices of `source` to their partners in `target`, all sending at once."""
    first, second = tuple(source), tuple(target)
    pairs = zip(*(_in_turn(devices, max(len(first), len(second))) for devices in (first, second)), strict=True)
    found = Counter((cluster.node_of[a], cluster.node_of[b], _on_cpus(cluster, a, b), a == b) for a, b in pairs)
    leaving: Counter[int] = Counter()
    for (start, end, _, _), count in found.items():
        leaving[start] += count if start != end else 0
    kinds = {
        (_way(cluster, start, end), on_cpus, leaving[start]): (start, end)
        for start, end, on_cpus, same in found
        if not same
    }
    return tuple(_one_way(cluster, *ends, senders or 1, on_cpus) for (_, on_cpus, senders), ends in kinds.items())


def pair_link_costs(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], LinkCost]:
    """The way from the first to the second device of each pair, all first ones sending at once.

    Devices of one node that send out together share its nic; one that sends to several does so one after another.
    """
    wanted, node = tuple(dict.fromkeys(pairs)), cluster.node_of
    out = Counter(node[source] for source in {a for a, b in wanted if node[a] != node[b]})
    known: dict[tuple[object, int, _OnCpus], LinkCost] = {}
    found = {}
    for source, target in wanted:
        ends = node[source], node[target]
        senders = out[ends[0]] if ends[0] != ends[1] else 1
        key = (_way(cluster, *ends), senders, _on_cpus(cluster, source, target))
        if key not in known:
            known[key] = _one_way(cluster, *ends, *key[1:])
        found[source, target] = known[key]
    return found


def slowest(found: tuple[LinkCost, ...]) -> LinkCost:
    """A way no shorter than any of these: the longest latency, the most seconds per byte."""
    return LinkCost(max((w.latency for w in found), default=0.0), max((w.per_byte for w in found), default=0.0))


def _in_turn(devices: tuple[int, ...], count: int) -> Iterator[int]:
    return islice(cycle(devices), count)


def _way(cluster: Cluster, start: int, end: int) -> object:
    """What tells the way between two nodes from others: their links and nics, and the level that joins them."""
    first, second = cluster.nodes[start], cluster.nodes[end]
    if start == end:
        return first.link, None, -1
    return first.nic, second.nic, cluster.level_of({start, end})


def _on_cpus(cluster: Cluster, source: int, target: int) -> _OnCpus:
    """Whether each end is a CPU, where the cluster has both kinds."""
    if len(cluster.backends) == 1:
        return ()
    return cluster.devices[source].backend == "cpu", cluster.devices[target].backend == "cpu"


def _one_way(cluster: Cluster, start: int, end: int, senders: int, on_cpus: _OnCpus) -> LinkCost:
    """A message between devices of two nodes, `senders` of the first node's devices sending out.

    To or from a CPU it goes between processes; at the other end a GPU copies it from or to its host.
    """
    if start == end and any(on_cpus):
        inside = link_between_processes(cluster.nodes[start])
        return _copied(cluster, LinkCost(inside.latency_seconds, 1 / (inside.bandwidth * inside.share)), start, on_cpus)
    link = link_between_nodes(cluster, start, end)
    if start == end:
        return LinkCost(link.latency_seconds, 1 / link.bandwidth)
    nic = cluster.nodes[start].nic
    ports = nic.ports if nic is not None else 1
    way = LinkCost(link.latency_seconds, senders / min(senders, ports) / link.bandwidth)
    return _copied(cluster, way, start if on_cpus == (False, True) else end, on_cpus)


def _copied(cluster: Cluster, way: LinkCost, node: int, on_cpus: _OnCpus) -> LinkCost:
    """`way` with the copy between a GPU of `node` and its host where one end, and one only, is a CPU."""
    host = cluster.nodes[node].host
    if sum(on_cpus) != 1 or host is None:
        return way
    link = host.link
    per_byte = 1 / (link.bandwidth * link.share * link.ports)
    return LinkCost(way.latency + link.latency_seconds, way.per_byte + per_byte)


def _flat(link: Link, devices: int, kind: CollectiveKind, size: float) -> float:
    ring = (devices - 1) * link.latency_seconds + (devices - 1) / devices * size / link.bandwidth
    if kind != "all_reduce":
        return link.setup_seconds + ring
    tree = ceil(log2(devices)) * link.latency_seconds + size / link.bandwidth
    return link.setup_seconds + 2 * min(ring, tree)


def _exchange(levels: Bottleneck, size: float) -> float:
    """Every device sends each other one its piece: those of its node inside, the others' through the nic at once."""
    own, seconds = size / levels.devices, 0.0
    for link, partners in ((levels.intra, levels.per_node - 1), (levels.inter, levels.devices - levels.per_node)):
        if link is not None and partners > 0:
            through = link.setup_seconds + partners * link.latency_seconds
            seconds = max(seconds, through + partners / levels.devices * own / link.bandwidth)
    return seconds


def _across(levels: Bottleneck, intra: Link, inter: Link, kind: CollectiveKind, size: float) -> float:
    """Hierarchical: inside the node, between nodes on a share per device, inside again."""
    inside = _flat(intra, levels.per_node, "reduce_scatter", size)
    between = _flat(inter, levels.nodes, kind, size / levels.per_node)
    return between + (2 if kind == "all_reduce" else 1) * inside


def _through(levels: Bottleneck, kind: CollectiveKind, size: float) -> float:
    """One flat ring; all senders of a node carry it out together."""
    assert levels.inter is not None and levels.intra is not None
    slower = min(levels.intra.bandwidth, levels.inter.bandwidth * levels.per_node)
    ring = (levels.devices - 1) * max(levels.inter.latency_seconds, levels.intra.latency_seconds)
    ring += (levels.devices - 1) / levels.devices * size / slower
    return levels.inter.setup_seconds + (2 if kind == "all_reduce" else 1) * ring
