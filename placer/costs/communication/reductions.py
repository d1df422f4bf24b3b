"""Seconds of each way in which replicas on several hosts sum their gradients: the algorithm, the links it loads.

k ranks on H nodes sum n bytes; a is the latency of the slowest way, p(flows) the seconds per byte while all of these
flows move at once: on each node's way out and in, and on each level between nodes, the flows there over its bandwidth.

    flat            all_reduce of all ranks: setup + 2 (k-1) a + 2 (k-1)/k n p(ring)
    hierarchical    slowest reduce(h, n) of a node + flat(first rank of each node, n) + slowest broadcast(h, n) of one
    server          2 a + (n + piece) max(p(all to the server), p(the server to all))
    reduce          setup + h a + ((1 - 2/segments) p(ring) + (h-1)/h p(to the first)) n
    broadcast       setup + ceil(log2 h) (a + n p(to one))

and in each the additions, which read two numbers and write one, at the memory's bandwidth of the rank that adds most.

Sources: gloo's code in torch 2.11 to 2.13. Its all_reduce is a ring whatever the size (gloo/allreduce.cc: `UNSPECIFIED`
is `RING`, and torch asks for nothing else; neither halving and doubling nor a tree): k chunks go round twice, in the
order of the ranks, of each two segments or more under way at once (Thakur et al. 2005). Its reduce sends all but two of
its segments round that ring, then every rank's chunk to the root (gloo/reduce.cc); its broadcast is a binomial tree
of whole messages (gloo/broadcast.cc). The server is placer's own: every rank sends it pieces and gets their sums while
the next ones are under way, so that links are full in both directions (as parameter servers do: Jiang et al., BytePS,
OSDI 2020): k/2/(k-1) of a ring's bytes cross a rank's link, but k-1 times the buffer the server's.

NCCL chooses its algorithm by itself (ring, tree, by NVLink and by network) with knowledge of the switches that nobody
else has: over GPUs it is left to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2
from typing import NamedTuple

from placer.cluster.cluster import Cluster, Link
from placer.cluster.topology import link_between_nodes, link_between_processes
from placer.costs.communication.mixed_allreduce import PASSES
from placer.costs.compute.roofline import memory_rate
from placer.plans.plan import Reduction

# The most bytes of a segment (gloo/allreduce.h and reduce.h, kMaxSegmentSize), and here of a piece.
MOST_SEGMENT = 2**20
# Pieces that a server's sum is cut into, where they are neither smaller than one nor larger than the other: by
# definition no price. The last one is waited for alone.
PIECES, LEAST_PIECE = 16, 2**16

_Flow = tuple[int, int]


class _Rate(NamedTuple):
    """Flows that move at once: seconds of an empty message, seconds per byte of each of them, of a collective."""

    latency: float = 0.0
    per_byte: float = 0.0
    setup: float = 0.0


def piece_bytes(size: float) -> int:
    """Bytes of the pieces in which a server sums `size` bytes."""
    return int(min(MOST_SEGMENT, max(LEAST_PIECE, size // PIECES)))


def reductions(cluster: Cluster, devices: Sequence[int]) -> tuple[Reduction, ...]:
    """The ways that replicas on `devices` have: several where they are CPUs on several nodes."""
    nodes = {cluster.node_of[device] for device in devices}
    if len(nodes) < 2 or any(cluster.devices[device].backend != "cpu" for device in devices):
        return ("flat",)
    return ("flat", "hierarchical", "server") if len(nodes) < len(devices) else ("flat", "server")


def reduction_seconds(
    cluster: Cluster, devices: tuple[int, ...], size: float, groups: int = 1
) -> dict[Reduction, float]:
    """Seconds of each way that `devices`, in the order of their ranks, have to sum `size` bytes.

    groups: so many sums like this one run at once, on other devices of the same nodes.
    """
    found = GlooSum(cluster, devices, groups)
    return {way: found.seconds(way, size) for way in reductions(cluster, devices)}


def server_of(cluster: Cluster, devices: tuple[int, ...]) -> int:
    """The place among `devices` of the one that serves the others soonest, the first of equal ones."""
    found = GlooSum(cluster, devices)
    return min(range(len(devices)), key=lambda place: max(rate.per_byte for rate in found.serving(place)))


@dataclass(frozen=True)
class GlooSum:
    """Sums over `devices` of `cluster`, all of them CPUs, in the order of their ranks; `groups` such run at once."""

    cluster: Cluster
    devices: tuple[int, ...]
    groups: int = 1

    def seconds(self, way: Reduction, size: float) -> float:
        """Seconds of summing `size` bytes."""
        if way == "flat":
            return self._ring(self.devices, size)
        return self._hierarchical(size) if way == "hierarchical" else self._served(size)

    def serving(self, place: int) -> tuple[_Rate, _Rate]:
        """To and from the device at `place`, and all others."""
        server = self.devices[place]
        others = [device for device in self.devices if device != server]
        return self._rate((other, server) for other in others), self._rate((server, other) for other in others)

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each node."""
        found: dict[int, list[int]] = {}
        for device in self.devices:
            found.setdefault(self.cluster.node_of[device], []).append(device)
        return tuple(map(tuple, found.values()))

    def _ring(self, devices: tuple[int, ...], size: float) -> float:
        count = len(devices)
        if count < 2:
            return 0.0
        rate, part = self._rate(_around(devices)), (count - 1) / count * size
        return rate.setup + 2 * (count - 1) * rate.latency + 2 * part * rate.per_byte + self._adding(devices, part)

    def _hierarchical(self, size: float) -> float:
        several = [host for host in self.hosts if len(host) > 1]
        reduced = max((self._reduced(host, size) for host in several), default=0.0)
        spread = max((self._broadcast(host, size) for host in several), default=0.0)
        return reduced + self._ring(tuple(host[0] for host in self.hosts), size) + spread

    def _served(self, size: float) -> float:
        place = server_of(self.cluster, self.devices)
        there, back = self.serving(place)
        moved = (size + min(size, piece_bytes(size))) * max(there.per_byte, back.per_byte)
        added = self._adding((self.devices[place],), (len(self.devices) - 1) * size)
        return there.latency + back.latency + moved + added

    def _reduced(self, host: tuple[int, ...], size: float) -> float:
        """A reduce to the first of a node's devices."""
        count, ring = len(host), self._rate(_around(host))
        sent = size * (1 - 2 / max(2 * count, size / MOST_SEGMENT))
        part = (count - 1) / count * size
        moved = sent * ring.per_byte + part / (count - 1) * self._rate((own, host[0]) for own in host[1:]).per_byte
        return ring.setup + count * ring.latency + moved + self._adding(host, part)

    def _broadcast(self, host: tuple[int, ...], size: float) -> float:
        """From the first of a node's devices to the others."""
        rate = self._rate([(host[0], host[1])])
        return rate.setup + ceil(log2(len(host))) * (rate.latency + size * rate.per_byte)

    def _adding(self, devices: Iterable[int], size: float) -> float:
        """Adding so many bytes to as many, on the slowest of `devices`."""
        return PASSES * size / min(memory_rate(self.cluster.devices[device]) for device in devices)

    def _rate(self, flows: Iterable[_Flow]) -> _Rate:
        """All of these flows between devices at once."""
        node_of, known = self.cluster.node_of, tuple(flows)
        between = Counter((node_of[a], node_of[b]) for a, b in known)
        inside = {start for start, end in between if start == end}
        found = [self._inside(node, [f for f in known if node_of[f[0]] == node_of[f[1]] == node]) for node in inside]
        out, into = Counter[int](), Counter[int]()
        for (start, end), count in between.items():
            if start != end:
                out[start] += count
                into[end] += count
        found += [self._way(start, end, out[start], into[end]) for start, end in between if start != end]
        return _Rate(*(max(values) for values in zip(*found, strict=True)))

    def _way(self, start: int, end: int, leaving: int, entering: int) -> _Rate:
        """Between two nodes, where so many leave the one and enter the other."""
        ends = ((self.cluster.nodes[start].nic, leaving), (self.cluster.nodes[end].nic, entering))
        levels = self.cluster.levels[: self.cluster.level_of({start, end}) + 1]
        crossed = [(nic, flows) for nic, flows in ends if nic is not None]
        crossed += [(level.link, max(leaving, entering)) for level in levels]
        return _Rate(
            latency=link_between_nodes(self.cluster, start, end).latency_seconds,
            per_byte=max(_per_byte(link, flows * self.groups) for link, flows in crossed),
            setup=max(link.setup_seconds for link, _ in crossed),
        )

    def _inside(self, node: int, flows: Sequence[_Flow]) -> _Rate:
        """Between processes of a node, each of which sends and receives one thing after another."""
        link = link_between_processes(self.cluster.nodes[node])
        busiest = max(max(Counter(ends).values()) for ends in zip(*flows, strict=True))
        return _Rate(link.latency_seconds, busiest / (link.bandwidth * link.shared), link.setup_seconds)


def _around(devices: Sequence[int]) -> tuple[_Flow, ...]:
    """The flows of a ring."""
    return tuple(pairwise((*devices, devices[0])))


def _per_byte(link: Link, flows: int) -> float:
    """Seconds per byte of each of `flows` through a link, one of which fills one port."""
    return flows / (link.bandwidth * link.shared * min(flows, link.ports))
