"""Seconds of messages and collectives on one Cluster, remembered: searches ask for the same devices again and again.

message      latency + bytes * seconds per byte, of the slowest pair of partners (`collectives.message_seconds`)
collective   the fastest algorithm over the levels its devices span (`collectives.over_levels`)
             sums over GPUs and CPUs together: the cheapest way of `mixed`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from placer.cluster.cluster import Cluster
from placer.cluster.topology import Bottleneck, bottleneck
from placer.costs.communication.collectives import (
    CollectiveKind,
    LinkCost,
    link_costs,
    over_levels,
    pair_link_costs,
    slowest,
)
from placer.costs.communication.mixed_allreduce import mixed_sum


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSeconds:
    """Seconds of a microbatch's messages after a stage: values on, gradients back."""

    forward: float = 0.0
    backward: float = 0.0


class Network:
    """What crosses between the devices of `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._levels: dict[tuple[tuple[int, ...], int], Bottleneck] = {}
        self._messages: dict[tuple[tuple[int, ...], tuple[int, ...]], LinkCost] = {}

    def transfer(
        self, source: tuple[int, ...], target: tuple[int, ...], *, sent: float, returned: float | None
    ) -> TransferSeconds:
        """Seconds of `sent` bytes from `source` on to `target`, and of `returned` bytes back (None: no message)."""
        latency, per_byte = self._message(source, target)
        backward = latency + returned * per_byte if returned is not None else 0.0
        return TransferSeconds(forward=latency + sent * per_byte, backward=backward)

    def exchange(self, parcels: Sequence[tuple[int, int, int]]) -> float:
        """Seconds of (sender, receiver, bytes) in this order, each when both its ends are free."""
        costs = self.link_costs((source, target) for source, target, _ in parcels)
        sending: dict[int, float] = {}
        receiving: dict[int, float] = {}
        for source, target, size in parcels:
            latency, per_byte = costs[source, target]
            begin = max(sending.get(source, 0.0), receiving.get(target, 0.0) - latency)
            sending[source] = begin + size * per_byte
            receiving[target] = max(begin + latency, receiving.get(target, 0.0)) + size * per_byte
        return max(receiving.values(), default=0.0)

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
        return over_levels(self.levels(devices, groups), self._as_run(kind, devices), size)

    def levels(self, devices: tuple[int, ...], groups: int = 1) -> Bottleneck:
        """The levels a collective over `devices` climbs."""
        found = self._levels.get((devices, groups))
        if found is None:
            found = self._levels[devices, groups] = bottleneck(self.cluster, devices, groups=groups)
        return found

    def _as_run(self, kind: CollectiveKind, devices: tuple[int, ...]) -> CollectiveKind:
        """What the devices' library does: gloo (torch 2.13) reduces whole buffers everywhere to scatter them.

        Measured on namespaces with links of 100 Mbit/s and more: 2.3 times a ring's reduce-scatter.
        """
        on_cpu = kind == "reduce_scatter" and any(self.cluster.devices[d].backend == "cpu" for d in devices)
        return "all_reduce" if on_cpu else kind

    def _message(self, source: tuple[int, ...], target: tuple[int, ...]) -> LinkCost:
        """One message from every source to its partner at once: the longest latency, the most seconds per byte."""
        found = self._messages.get((source, target))
        if found is None:
            found = self._messages[source, target] = slowest(link_costs(self.cluster, source, target))
        return found
