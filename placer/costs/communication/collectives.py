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

from math import ceil, log2
from typing import Literal

from placer.cluster.cluster import Link
from placer.cluster.topology import Bottleneck

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def over_levels(levels: Bottleneck, kind: CollectiveKind, size: float, *, ring: bool = False) -> float:
    """Seconds of a collective over the given levels; `ring`: an all_reduce is one ring whatever the size, as gloo's."""
    if kind == "all_to_all":
        return _exchange(levels, size)
    if ring and kind == "all_reduce":
        return _ring(levels, size)
    if levels.inter is None:
        assert levels.intra is not None
        return _flat(levels.intra, levels.devices, kind, size)
    if levels.intra is None:
        return _flat(levels.inter, levels.devices, kind, size)
    return min(_across(levels, levels.intra, levels.inter, kind, size), _through(levels, kind, size))


def _flat(link: Link, devices: int, kind: CollectiveKind, size: float) -> float:
    ring = _around(link, devices, size)
    if kind != "all_reduce":
        return link.setup_seconds + ring
    tree = ceil(log2(devices)) * link.latency_seconds + size / link.bandwidth
    return link.setup_seconds + 2 * min(ring, tree)


def _ring(levels: Bottleneck, size: float) -> float:
    if levels.inter is not None and levels.intra is not None:
        return _through(levels, "all_reduce", size)
    link = levels.intra or levels.inter
    assert link is not None
    return link.setup_seconds + 2 * _around(link, levels.devices, size)


def _around(link: Link, devices: int, size: float) -> float:
    """Once around a ring."""
    return (devices - 1) * link.latency_seconds + (devices - 1) / devices * size / link.bandwidth


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
