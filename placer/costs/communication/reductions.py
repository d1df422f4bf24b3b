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

Everything is linear in the flows' rates, which `GlooSum` works out once: searches ask for the same devices again and
again, with other sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, log2
from typing import Literal, NamedTuple, TypeAlias

from placer.cluster.cluster import Cluster
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
# A way, or whichever is the cheapest.
AnyReduction: TypeAlias = Reduction | Literal["cheapest"]


class _Rate(NamedTuple):
    """Flows that move at once: seconds of an empty message, seconds per byte of each of them, of a collective."""

    latency: float = 0.0
    per_byte: float = 0.0
    setup: float = 0.0


class _Ring(NamedTuple):
    """A ring: how many are in it, its flows, the slowest memory's bandwidth."""

    ranks: int
    rate: _Rate
    memory: float


class _Host(NamedTuple):
    """A node with several devices: their ring, seconds per byte of all others to the first, the first to another."""

    ring: _Ring
    gathered: float
    spread: _Rate


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
    return {way: found.seconds(way, size) for way in found.ways}


def server_of(cluster: Cluster, devices: tuple[int, ...]) -> int:
    """The place among `devices` of the one that serves the others soonest, the first of equal ones."""
    return GlooSum(cluster, devices).server


@dataclass(frozen=True)
class GlooSum:
    """Sums over `devices` of `cluster`, all of them CPUs, in the order of their ranks; `groups` such run at once."""

    cluster: Cluster
    devices: tuple[int, ...]
    groups: int = 1

    def seconds(self, way: AnyReduction, size: float) -> float:
        """Seconds of summing `size` bytes; of a way that these devices have not, those of the flat one."""
        if way == "cheapest":
            return min(self.seconds(own, size) for own in self.ways)
        if way == "hierarchical" and way in self.ways:
            return self._hierarchical(size)
        return self._served(size) if way == "server" and way in self.ways else self._ring(self._flat, size)

    @cached_property
    def ways(self) -> tuple[Reduction, ...]:
        """Those that these devices have."""
        return reductions(self.cluster, self.devices)

    @cached_property
    def rates(self) -> tuple[object, ...]:
        """All that seconds depend on: sums with equal ones cost the same."""
        return self.ways, self._flat, self._leading, self._within, self._serving, self._memory(self.devices)

    @cached_property
    def server(self) -> int:
        """The place of the device that serves the others soonest, the first of equal ones."""
        even = len(self.cluster.groups) == 1 and len(self.cluster.levels) <= 1
        first = dict[int, int]()
        for number, host in enumerate(self.hosts):  # those of a node serve alike, and so do equal nodes of as many
            first.setdefault(len(host) if even else number, self.devices.index(host[0]))
        return min(first.values(), key=lambda place: max(rate.per_byte for rate in self.serving(place)))

    def serving(self, place: int) -> tuple[_Rate, _Rate]:
        """To and from the device at `place`, and all others."""
        server = self.devices[place]
        others = [device for device in self.devices if device != server]
        return self._rate((other, server) for other in others), self._rate((server, other) for other in others)

    @cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each node."""
        found: dict[int, list[int]] = {}
        for device in self.devices:
            found.setdefault(self.cluster.node_of[device], []).append(device)
        return tuple(map(tuple, found.values()))

    @cached_property
    def _flat(self) -> _Ring:
        """The ring of all."""
        return self._around(self.devices)

    @cached_property
    def _leading(self) -> _Ring:
        """The ring of the first device of each node."""
        return self._around(tuple(host[0] for host in self.hosts))

    @cached_property
    def _within(self) -> tuple[_Host, ...]:
        """The nodes with several devices, those that are alike once."""
        return tuple(dict.fromkeys(self._host(host) for host in self.hosts if len(host) > 1))

    @cached_property
    def _serving(self) -> tuple[float, float, float]:
        """Of the server: seconds of empty messages there and back, seconds per byte, its memory's bandwidth."""
        there, back = self.serving(self.server)
        memory = self._memory((self.devices[self.server],))
        return there.latency + back.latency, max(there.per_byte, back.per_byte), memory

    def _around(self, devices: tuple[int, ...]) -> _Ring:
        return _Ring(len(devices), self._rate(_around(devices)), self._memory(devices))

    def _host(self, devices: tuple[int, ...]) -> _Host:
        ring, first = self._around(devices), devices[0]
        gathered = self._rate((own, first) for own in devices[1:])
        return _Host(ring, gathered.per_byte, self._rate([(first, devices[1])]))

    def _ring(self, ring: _Ring, size: float) -> float:
        count, rate = ring.ranks, ring.rate
        part = (count - 1) / count * size
        return rate.setup + 2 * (count - 1) * rate.latency + 2 * part * rate.per_byte + PASSES * part / ring.memory

    def _hierarchical(self, size: float) -> float:
        reduced = max((_reduced(host, size) for host in self._within), default=0.0)
        spread = max((_broadcast(host, size) for host in self._within), default=0.0)
        return reduced + self._ring(self._leading, size) + spread

    def _served(self, size: float) -> float:
        latency, per_byte, memory = self._serving
        moved = (size + min(size, piece_bytes(size))) * per_byte
        return latency + moved + PASSES * (len(self.devices) - 1) * size / memory

    def _memory(self, devices: Iterable[int]) -> float:
        """The bandwidth of the slowest memory, which bounds additions."""
        return min(memory_rate(self.cluster.devices[device]) for device in devices)

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
        flows = (leaving * self.groups, entering * self.groups)
        link = link_between_nodes(self.cluster, start, end, *flows, collective=True)
        return _Rate(link.latency_seconds, 1 / link.bandwidth, link.setup_seconds)

    def _inside(self, node: int, flows: Sequence[_Flow]) -> _Rate:
        """Between processes of a node, each of which sends and receives one thing after another."""
        link = link_between_processes(self.cluster.nodes[node])
        busiest = max(max(Counter(ends).values()) for ends in zip(*flows, strict=True))
        return _Rate(link.latency_seconds, busiest / (link.bandwidth * link.shared), link.setup_seconds)


def _reduced(host: _Host, size: float) -> float:
    """A reduce to the first of a node's devices."""
    count, ring, memory = host.ring
    sent = size * (1 - 2 / max(2 * count, size / MOST_SEGMENT))
    part = (count - 1) / count * size
    moved = sent * ring.per_byte + part / (count - 1) * host.gathered
    return ring.setup + count * ring.latency + moved + PASSES * part / memory


def _broadcast(host: _Host, size: float) -> float:
    """From the first of a node's devices to the others."""
    return host.spread.setup + ceil(log2(host.ring.ranks)) * (host.spread.latency + size * host.spread.per_byte)


def _around(devices: Sequence[int]) -> tuple[_Flow, ...]:
    """The flows of a ring."""
    return tuple(pairwise((*devices, devices[0])))
