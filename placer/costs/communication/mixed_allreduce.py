"""Sums over accelerators and CPU workers together: who does what in each way to do them, and the seconds of each.

Replicas of a stage on GPUs and on CPUs have no collective in common: NCCL reduces what lies on GPUs, gloo what lies on
hosts. n bytes are summed by k ranks in one of three ways (Node.host says link p and memory M of a host):

    host    out(n) + ring(k, n) + in(n)                 GPUs copy to their hosts, where all ranks are summed by gloo
    hosts   out(n) + max over hosts h of ring(h, n)     the same, but first among the ranks of each host,
            + ring(H, n) + max over hosts of spread(h, n) + in(n)     then between the H hosts, then back to their ranks
    device  max over GPUs of the sum over its CPU workers of (message(n) + in(n) + add(n))
            + the GPUs' own all_reduce(n) (`collectives`)
            + max over GPUs with workers of (out(n) + the sum over them of message(n))

    out, in   latency(p) + max(n / p, GPUs of the host * n / M)       each GPU has a link of its own, all share M
    ring      2 (k-1) step + (k-1) 3 n/k * ranks of a host / M        Thakur et al. 2005; an addition reads two numbers
              step = the slowest neighbours' latency + n/k / rate     and writes one, where the host's memory does it
    spread    ceil(log2 h) message(n)                                 a binomial tree, as gloo's broadcast
    message   latency + n / rate; the workers of a host that send to other hosts at once share its way out
    add       a kernel over 3 n bytes of the GPU's memory

Between processes of a host bytes go over `topology.link_between_processes`. The second way costs fewer messages where
hosts have many ranks, and fewer bytes between them. All grow with n, and per byte they fall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil, log2
from typing import Literal, NamedTuple

from placer.cluster.cluster import Cluster, Node
from placer.cluster.topology import Bottleneck, bottleneck, link_between_nodes, link_between_processes
from placer.costs.communication.collectives import over_levels
from placer.costs.compute.roofline import memory_rate

RouteName = Literal["host", "hosts", "device"]

# Bytes that move through memory for each byte that is added, by definition: both are read, the sum is written.
PASSES = 3


class Roles(NamedTuple):
    """Who does what, as places among the devices that sum.

    hosts: the places of each host. workers: of each accelerator the CPUs whose numbers it adds to its own: those of its
    own host where it has some, each to the accelerator with fewest so far.
    """

    accelerators: tuple[int, ...]
    hosts: tuple[tuple[int, ...], ...]
    workers: tuple[tuple[int, ...], ...]


def roles(cluster: Cluster, devices: Sequence[int]) -> Roles:
    """The roles of `devices`, some of which are CPUs and some not."""
    hosts: dict[int, list[int]] = {}
    for place, device in enumerate(devices):
        hosts.setdefault(cluster.node_of[device], []).append(place)
    accelerators = tuple(p for p, device in enumerate(devices) if cluster.devices[device].backend != "cpu")
    workers: dict[int, list[int]] = {place: [] for place in accelerators}
    for place in (p for p in range(len(devices)) if p not in workers):
        own = [p for p in hosts[cluster.node_of[devices[place]]] if p in workers]
        workers[min(own or accelerators, key=lambda p: len(workers[p]))].append(place)
    return Roles(accelerators, tuple(map(tuple, hosts.values())), tuple(tuple(found) for found in workers.values()))


class _Line(NamedTuple):
    """Seconds that grow with bytes: of none, and per byte."""

    fixed: float
    per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """A ring of `count` ranks: a step between neighbours, and seconds per byte of the additions that follow it."""

    count: int
    steps: frozenset[_Line]
    adding: float

    def seconds(self, size: float) -> float:
        if self.count < 2:
            return 0.0
        piece = size / self.count
        return (self.count - 1) * (2 * _slowest(self.steps, piece) + PASSES * piece * self.adding)


@dataclass(frozen=True)
class MixedSum:
    """Sums over `devices` of `cluster`, CPUs and others; `groups` such run at once on the same nodes."""

    cluster: Cluster
    devices: tuple[int, ...]
    groups: int = 1

    def cheapest(self, size: float) -> tuple[RouteName, float]:
        """The way that takes fewest seconds for `size` bytes, the first of equal ones, with these."""
        found = self.seconds(size)
        best = min(found, key=found.__getitem__)
        return best, found[best]

    def seconds(self, size: float) -> dict[RouteName, float]:
        """Seconds of each way for `size` bytes; `hosts` where there are several, one of them with several ranks."""
        copies = 2 * _slowest(self._copies, size)
        found: dict[RouteName, float] = {"host": copies + self._whole.seconds(size)}
        if 1 < len(self.roles.hosts) < len(self.devices):
            inside = max(ring.seconds(size) for ring in self._inside)
            found["hosts"] = copies + inside + self._between.seconds(size) + _slowest(self._spread, size)
        reduced = 0.0 if self._levels is None else over_levels(self._levels, "all_reduce", size)
        found["device"] = _slowest(self._collected, size) + reduced + _slowest(self._returned, size)
        return found

    @cached_property
    def roles(self) -> Roles:
        """Who does what."""
        return roles(self.cluster, self.devices)

    @cached_property
    def _copies(self) -> frozenset[_Line]:
        """Of every accelerator to its host, or back, all at once."""
        counts = Counter(map(self._node_of, self.roles.accelerators))
        return frozenset(self._copy(node, count) for node, count in counts.items())

    @cached_property
    def _whole(self) -> _Ring:
        return self._ring(tuple(range(len(self.devices))))

    @cached_property
    def _inside(self) -> frozenset[_Ring]:
        return frozenset(map(self._ring, self.roles.hosts))

    @cached_property
    def _between(self) -> _Ring:
        return self._ring(tuple(host[0] for host in self.roles.hosts))

    @cached_property
    def _spread(self) -> frozenset[_Line]:
        """From the first rank of each host to its others."""
        several = (host for host in self.roles.hosts if len(host) > 1)
        return frozenset(_sum([self._message(host[0], host[1])] * ceil(log2(len(host)))) for host in several)

    @cached_property
    def _collected(self) -> frozenset[_Line]:
        """Of each accelerator until it has added what its workers sent, one after another."""
        sending = Counter(self._node_of(worker) for place, worker in self._served if self._apart(place, worker))
        found: dict[int, list[_Line]] = {}
        for place, worker in self._served:
            message = self._message(worker, place, sending[self._node_of(worker)])
            chip = self.cluster.devices[self.devices[place]]
            add = _Line(chip.launch_seconds, PASSES / memory_rate(chip))
            found.setdefault(place, []).extend((message, self._copy(self._node_of(place), 1), add))
        return frozenset(map(_sum, found.values()))

    @cached_property
    def _returned(self) -> frozenset[_Line]:
        """Of each accelerator until all its workers have the sum."""
        places = {place for place, _ in self._served}
        copying = Counter(map(self._node_of, places))
        sending = Counter(self._node_of(p) for p in {p for p, worker in self._served if self._apart(p, worker)})
        found = {p: [self._copy(self._node_of(p), copying[self._node_of(p)])] for p in places}
        for place, worker in self._served:
            found[place].append(self._message(place, worker, sending[self._node_of(place)]))
        return frozenset(map(_sum, found.values()))

    @cached_property
    def _levels(self) -> Bottleneck | None:
        """What the accelerators' own all-reduce climbs; None where there is one."""
        devices = tuple(self.devices[place] for place in self.roles.accelerators)
        return bottleneck(self.cluster, devices, groups=self.groups) if len(devices) > 1 else None

    @cached_property
    def _served(self) -> tuple[tuple[int, int], ...]:
        """Each worker behind its accelerator."""
        pairs = zip(self.roles.accelerators, self.roles.workers, strict=True)
        return tuple((place, worker) for place, found in pairs for worker in found)

    def _ring(self, places: tuple[int, ...]) -> _Ring:
        """All neighbours send at once, of each host one to another host; what lies on hosts is added there."""
        ranks = Counter(map(self._node_of, places))
        return _Ring(
            count=len(places),
            steps=frozenset(self._step(a, b) for a, b in pairwise((*places, places[0]))),
            adding=max(self.groups * own / _memory(self.cluster.nodes[node]) for node, own in ranks.items()),
        )

    def _step(self, first: int, second: int) -> _Line:
        if self._apart(first, second):
            return self._message(first, second)
        link = link_between_processes(self.cluster.nodes[self._node_of(first)])
        return _Line(link.latency_seconds, 1 / (link.bandwidth * link.shared))

    def _message(self, source: int, target: int, senders: int = 1) -> _Line:
        """A message between two ranks, `senders` of the first one's host sending out at once."""
        ends = self._node_of(source), self._node_of(target)
        if ends[0] == ends[1]:
            link = link_between_processes(self.cluster.nodes[ends[0]])
            return _Line(link.latency_seconds, 1 / (link.bandwidth * link.share))
        link = link_between_nodes(self.cluster, *ends)
        return _Line(link.latency_seconds, senders * self.groups / link.bandwidth)

    def _copy(self, node: int, count: int) -> _Line:
        """Between each of `count` accelerators of a node and its host."""
        host = self.cluster.nodes[node].host
        assert host is not None  # `network.require_hosts`
        own, shared = host.link.bandwidth * host.link.share * host.link.ports, host.memory_bandwidth
        return _Line(host.link.latency_seconds, max(1 / own, count * self.groups / shared))

    def _apart(self, first: int, second: int) -> bool:
        return self._node_of(first) != self._node_of(second)

    def _node_of(self, place: int) -> int:
        return self.cluster.node_of[self.devices[place]]


@lru_cache(maxsize=4096)
def mixed_sum(cluster: Cluster, devices: tuple[int, ...], groups: int = 1) -> MixedSum:
    """The sums over `devices`; made once."""
    return MixedSum(cluster, devices, groups)


def _slowest(lines: Iterable[_Line], size: float) -> float:
    return max((line.fixed + line.per_byte * size for line in lines), default=0.0)


def _sum(lines: Sequence[_Line]) -> _Line:
    return _Line(sum(line.fixed for line in lines), sum(line.per_byte for line in lines))


def _memory(node: Node) -> float:
    """Bytes a second of a host's memory: as it says, or what its CPUs say of their shares of it."""
    if node.host is not None:
        return node.host.memory_bandwidth
    return sum(count * memory_rate(device) for device, count in node.devices)
