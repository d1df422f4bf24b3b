"""Seconds of messages and collectives on one Cluster, remembered: searches ask for the same devices again and again.

message      latency + bytes * seconds per byte, of the slowest pair of partners (`message_seconds`)
collective   the fastest algorithm over the levels its devices span (`collectives.over_levels`)
             sums over GPUs and CPUs together: the cheapest route of `mixed_allreduce`
gradients    over CPUs on several nodes in the way that is asked for (`reductions`), elsewhere such a collective
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice
from typing import NamedTuple, TypeAlias

from placer.cluster.cluster import Cluster
from placer.cluster.topology import Bottleneck, bottleneck, link_between_nodes, link_between_processes
from placer.costs.communication.collectives import CollectiveKind, over_levels
from placer.costs.communication.footing import Footings
from placer.costs.communication.mixed_allreduce import mixed_sum
from placer.costs.communication.reductions import AnyReduction, GlooSum, reductions
from placer.errors import UsageError
from placer.io.memo import once, remembered
from placer.plans.plan import Reduction

# Of a message, whether each end is a CPU; () where all devices are of one kind.
_OnCpus: TypeAlias = tuple[bool, ...]
# Messages that leave a node and enter another one at once: no other than this one.
ALONE = (1, 1)


class LinkCost(NamedTuple):
    """One kind of way that messages take at once: seconds of an empty one, seconds per byte."""

    latency: float
    per_byte: float

    def seconds(self, size: float) -> float:
        """Seconds of a message of `size` bytes."""
        return self.latency + size * self.per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSeconds:
    """Seconds of a microbatch's messages after a stage: values on, gradients back."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, eq=False)
class Network:
    """What crosses between the devices of `cluster`; remembers what it computed."""

    cluster: Cluster
    #: Of a cluster whose nodes and ways are all alike, by how many devices are on how many nodes.
    _levels: dict[Hashable, Bottleneck] = field(default_factory=dict)
    _ways: dict[Hashable, LinkCost] = field(default_factory=dict)

    @cached_property
    def footings(self) -> Footings:
        """Numbers of how devices stand."""
        return Footings(self.cluster)

    def transfer(
        self, source: tuple[int, ...], target: tuple[int, ...], *, sent: float, returned: float | None
    ) -> TransferSeconds:
        """Seconds of `sent` bytes from `source` on to `target`, and of `returned` bytes back (None: no message)."""
        latency, per_byte = self._message(source, target)
        backward = latency + returned * per_byte if returned is not None else 0.0
        return TransferSeconds(forward=latency + sent * per_byte, backward=backward)

    def exchange(self, parcels: Sequence[tuple[int, int, int]]) -> float:
        """Seconds of (sender, receiver, bytes) in this order, each when both its ends are free."""
        ways = self.link_costs((source, target) for source, target, _ in parcels)
        return _exchanged(parcels, [ways[source, target] for source, target, _ in parcels])

    def lane_exchange(
        self, parcels: Sequence[tuple[int, int, int]], sources: Sequence[int], targets: Sequence[int], lanes: int
    ) -> float:
        """`exchange` of (sending replica, receiving replica, bytes of each of so many `lanes`), given their nodes."""
        ends = [(sources[sender], targets[receiver]) for sender, receiver, _ in parcels]
        flows = _Flows.of((one[:2], end) for one, end in zip(parcels, ends, strict=True))
        ways = {(start, end): self.way(start, end, *flows.between(start, end, lanes)) for start, end in set(ends)}
        return _exchanged(parcels, [ways[pair] for pair in ends])

    @remembered
    def nodes_of_replicas(self, devices: tuple[int, ...], degree: int) -> tuple[int, ...]:
        """The node of each replica; none where one is on several nodes, or the cluster has GPUs and CPUs, between which
        ways differ within a node."""
        nodes = [self.cluster.node_of[device] for device in devices]
        whole = all(len(set(nodes[at : at + degree])) == 1 for at in range(0, len(nodes), degree))
        sound = whole and len(self.cluster.backends) == 1 and len(set(devices)) == len(devices)
        return tuple(nodes[::degree]) if sound else ()

    def way(self, start: int, end: int, leaving: int, entering: int) -> LinkCost:
        """A message between devices of two nodes, of so many at once that leave the one and enter the other."""
        ends = start == end if self.footings.even else (start, end)
        return once(self._ways, (ends, leaving, entering), _one_way, self.cluster, start, end, (leaving, entering), ())

    def link_costs(self, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], LinkCost]:
        """The way between the two devices of each pair, all senders of a node sending at once."""
        return pair_link_costs(self.cluster, pairs)

    def message(self, source: int, target: int, size: int) -> float:
        """Seconds of one message of `size` bytes between two devices."""
        return self.messages((source,), (target,), size)

    def messages(self, sources: tuple[int, ...], targets: tuple[int, ...], size: int) -> float:
        """Seconds of a message of `size` bytes from every source to its partner, all at once."""
        latency, per_byte = self._message(sources, targets)
        return latency + size * per_byte

    def collective(self, kind: CollectiveKind, devices: tuple[int, ...], size: float, groups: int = 1) -> float:
        """Seconds of a collective over `devices` on a buffer of `size` bytes, `groups` such running at once."""
        if len(devices) < 2 or not size:
            return 0.0
        if kind == "all_reduce" and self.cluster.unlike(devices):
            return mixed_sum(self.cluster, devices, groups).cheapest(size)[1]
        on_cpus = self.cluster.on_cpus(devices)
        return over_levels(self.levels(devices, groups), _as_run(kind, on_cpus=on_cpus), size, ring=on_cpus)

    def gradient_sum(self, devices: tuple[int, ...], size: float, way: AnyReduction, groups: int = 1) -> float:
        """Seconds in which replicas whose devices these are sum `size` bytes in this way, `groups` such at once."""
        if not size or len(self.reductions(devices)) < 2:
            return self.collective("all_reduce", devices, size, groups)
        return self.sums(devices, groups).seconds(way, size)

    @remembered
    def reductions(self, devices: tuple[int, ...]) -> tuple[Reduction, ...]:
        """The ways in which replicas on these devices can sum."""
        return reductions(self.cluster, devices)

    def sum_rates(self, devices: tuple[int, ...], groups: int = 1) -> tuple[object, ...]:
        """What tells the seconds of their gradients' sums apart from others whose collectives climb the same levels."""
        return self.sums(devices, groups).rates if len(self.reductions(devices)) > 1 else ()

    @remembered
    def sums(self, devices: tuple[int, ...], groups: int = 1) -> GlooSum:
        """Sums over CPUs on several nodes."""
        return GlooSum(self.cluster, devices, groups)

    @remembered
    def levels(self, devices: tuple[int, ...], groups: int = 1) -> Bottleneck:
        """The levels a collective over `devices` climbs."""
        if not self.footings.even:
            return bottleneck(self.cluster, devices, groups=groups)
        node_of = self.cluster.node_of
        held = Counter([node_of[device] for device in devices]).values()
        key = len(set(devices)), len(held), max(held), frozenset(held), groups
        return once(self._levels, key, bottleneck, self.cluster, devices, groups=groups)

    @remembered
    def _message(self, source: tuple[int, ...], target: tuple[int, ...]) -> LinkCost:
        """One message from every source to its partner at once: the longest latency, the most seconds per byte."""
        return slowest(link_costs(self.cluster, source, target))


def _as_run(kind: CollectiveKind, *, on_cpus: bool) -> CollectiveKind:
    """What the devices' library does: gloo (torch 2.13) reduces whole buffers everywhere to scatter them.

    Measured on namespaces with links of 100 Mbit/s and more: 2.3 times a ring's reduce-scatter.
    """
    return "all_reduce" if on_cpus and kind == "reduce_scatter" else kind


def require_hosts(cluster: Cluster) -> None:
    """Raise UsageError where accelerators stand beside CPUs and nothing is said of the hosts their bytes go through."""
    if len(cluster.backends) < 2:
        return
    for node, _ in cluster.groups:
        if node.host is None and any(device.backend != "cpu" for device, _ in node.devices):
            raise UsageError(
                f"cluster {cluster.name} has GPUs beside CPUs, which say everything to each other through their hosts, "
                f"and says nothing of the host of node {node.name}; add to the node in a cluster file, as in "
                "host: {link: pcie5, memory_bandwidth: 600 GB/s}"
            )


def message_seconds(cluster: Cluster, source: Collection[int], target: Collection[int], size: float) -> float:
    """Seconds until every device of `source` has sent `size` bytes to its partner in `target`, all at once.

    Partners are paired in order (of unequal counts, in turn). What leaves a node together, and what enters one, shares
    its nic and what the network has for it.
    """
    return max((way.seconds(size) for way in link_costs(cluster, source, target)), default=0.0)


def link_costs(cluster: Cluster, source: Collection[int], target: Collection[int]) -> tuple[LinkCost, ...]:
    """The kinds of ways from the devices of `source` to their partners in `target`, all sending at once."""
    first, second = tuple(source), tuple(target)
    pairs = islice(zip(cycle(first), cycle(second)), max(len(first), len(second)))
    node, mixed, neither = cluster.node_of, len(cluster.backends) > 1, ()
    found = Counter((node[a], node[b], _on_cpus(cluster, a, b) if mixed else neither, a == b) for a, b in pairs)
    leaving, entering = Counter[int](), Counter[int]()
    for (start, end, _, _), count in found.items():
        if start != end:
            leaving[start] += count
            entering[end] += count
    kinds = {}
    for start, end, on_cpus, same in found:
        flows = (leaving[start], entering[end]) if start != end else ALONE
        if not same:
            kinds[_way(cluster, start, end), on_cpus, flows] = start, end
    return tuple(_one_way(cluster, *ends, flows, on_cpus) for (_, on_cpus, flows), ends in kinds.items())


def pair_link_costs(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], LinkCost]:
    """The way from the first to the second device of each pair, all first ones sending at once.

    What leaves a node together, and what enters one, shares its nic and what the network has for it (`_Flows`).
    """
    wanted, node = tuple(dict.fromkeys(pairs)), cluster.node_of
    flows = _Flows.of(((a, b), (node[a], node[b])) for a, b in wanted)
    known: dict[tuple[object, tuple[int, int], _OnCpus], LinkCost] = {}
    between: dict[tuple[int, int, _OnCpus], LinkCost] = {}  # flows are told by the nodes
    found, mixed, neither = {}, len(cluster.backends) > 1, ()
    for pair in wanted:
        source, target = pair
        kind = (node[source], node[target], _on_cpus(cluster, source, target) if mixed else neither)
        way = between.get(kind)
        if way is None:
            start, end, on_cpus = kind
            both = flows.between(start, end)
            key = (_way(cluster, start, end), both, on_cpus)
            way = between[kind] = once(known, key, _one_way, cluster, start, end, both, on_cpus)
        found[pair] = way
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flows:
    """How many of an exchange's messages leave and enter each node at once.

    A device sends to one other at a time and gets from one at a time: no more leave a node than it has senders, nor
    than there are receivers for them, and no more enter one than it has receivers, nor than there are senders to them.
    """

    leaving: dict[int, int]
    entering: dict[int, int]

    @staticmethod
    def of(sent: Iterable[tuple[tuple[int, int], tuple[int, int]]]) -> _Flows:
        """Of (sender, receiver) and the nodes that they are on."""
        out: dict[int, tuple[set[int], set[int]]] = {}
        into: dict[int, tuple[set[int], set[int]]] = {}
        for (source, target), (start, end) in sent:
            if start != end:
                for senders, receivers in (out.setdefault(start, (set(), set())), into.setdefault(end, (set(), set()))):
                    senders.add(source)
                    receivers.add(target)
        return _Flows(leaving=_at_once(out), entering=_at_once(into))

    def between(self, start: int, end: int, lanes: int = 1) -> tuple[int, int]:
        """How many leave the one and enter the other node, each for so many `lanes`."""
        return (lanes * self.leaving[start], lanes * self.entering[end]) if start != end else ALONE


def _at_once(ends: dict[int, tuple[set[int], set[int]]]) -> dict[int, int]:
    """No more than there are senders, nor receivers."""
    return {node: min(map(len, both)) for node, both in ends.items()}


def _exchanged(parcels: Sequence[tuple[int, int, int]], ways: Sequence[LinkCost]) -> float:
    """Seconds of (sender, receiver, bytes) in this order, each its way when both its ends are free."""
    sending: dict[int, float] = {}
    receiving: dict[int, float] = {}
    for (source, target, size), (latency, per_byte) in zip(parcels, ways, strict=True):
        free, taken, seconds = sending.get(source, 0.0), receiving.get(target, 0.0), size * per_byte
        begin = free if free >= taken - latency else taken - latency
        arrived = begin + latency
        sending[source] = begin + seconds
        receiving[target] = (arrived if arrived >= taken else taken) + seconds
    return max(receiving.values(), default=0.0)


def slowest(found: tuple[LinkCost, ...]) -> LinkCost:
    """A way no shorter than any of these: the longest latency, the most seconds per byte."""
    return LinkCost(max((w.latency for w in found), default=0.0), max((w.per_byte for w in found), default=0.0))


def _way(cluster: Cluster, start: int, end: int) -> object:
    """What tells the way between two nodes from others: their links and nics, and the level that joins them."""
    first, second = cluster.nodes[start], cluster.nodes[end]
    if start == end:
        return first.link, None, -1
    return first.nic, second.nic, cluster.level_of({start, end})


def _on_cpus(cluster: Cluster, source: int, target: int) -> _OnCpus:
    """Whether each end is a CPU, asked where the cluster has both kinds."""
    return cluster.devices[source].backend == "cpu", cluster.devices[target].backend == "cpu"


def _one_way(cluster: Cluster, start: int, end: int, flows: tuple[int, int], on_cpus: _OnCpus) -> LinkCost:
    """A message between devices of two nodes; `flows`: so many leave the first and enter the second one at once.

    To or from a CPU it goes between processes; at the other end a GPU copies it from or to its host.
    """
    if start == end and any(on_cpus):
        inside = link_between_processes(cluster.nodes[start])
        return _copied(cluster, LinkCost(inside.latency_seconds, 1 / (inside.bandwidth * inside.share)), start, on_cpus)
    link = link_between_nodes(cluster, start, end, *flows)
    way = LinkCost(link.latency_seconds, 1 / link.bandwidth)
    if start == end:
        return way
    return _copied(cluster, way, start if on_cpus == (False, True) else end, on_cpus)


def _copied(cluster: Cluster, way: LinkCost, node: int, on_cpus: _OnCpus) -> LinkCost:
    """`way` with the copy between a GPU of `node` and its host where one end, and one only, is a CPU."""
    host = cluster.nodes[node].host
    if sum(on_cpus) != 1 or host is None:
        return way
    link = host.link
    per_byte = 1 / (link.bandwidth * link.share * link.ports)
    return LinkCost(way.latency + link.latency_seconds, way.per_byte + per_byte)
