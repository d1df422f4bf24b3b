"""The fast parts of a cluster of unlike devices: what is left where the slower classes are taken away.

In: a Cluster. Out: smaller Clusters, each with the numbers its devices have in the whole. A search of a part gives a
plan of the whole; where so many plans are possible that a search ends before the last is excluded, it begins with
these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from placer.cluster.cluster import Cluster, Node
from placer.plans.plan import Plan
from placer.strategies.space.device_orders import group_classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcluster:
    """A cluster of some devices of another one: device d is `devices[d]` there."""

    cluster: Cluster
    devices: tuple[int, ...]

    def lifted(self, plan: Plan, whole: Cluster) -> Plan:
        """The plan of the part as one of the whole."""
        stages = tuple(replace(s, devices=tuple(self.devices[d] for d in s.devices)) for s in plan.stages)
        return replace(plan, cluster=whole, stages=stages, ledger=None, bound=None)


def fast_subclusters(cluster: Cluster) -> Iterator[Subcluster]:
    """The fastest class of devices, the fastest two, and so on without the whole."""
    own = sorted(group_classes(cluster, 1), key=lambda units: (-cluster.devices[units[0][0]].rate("float32"), units[0]))
    for count in range(1, len(own)):
        yield subcluster(cluster, frozenset(device for units in own[:count] for (device,) in units))


def subcluster(cluster: Cluster, kept: frozenset[int]) -> Subcluster:
    """The devices `kept`, in nodes of what is left of them."""
    groups: list[tuple[Node, int]] = []
    start = 0
    for node in cluster.nodes:
        own = range(start, start + node.size)
        start += node.size
        left = tuple((cluster.devices[device], 1) for device in own if device in kept)
        if len(left) == node.size:
            left = node.devices
        if left:
            groups.append((replace(node, devices=left), 1))
    merged: list[tuple[Node, int]] = []
    for node, _ in groups:
        if merged and merged[-1][0] == node:
            merged[-1] = (node, merged[-1][1] + 1)
        else:
            merged.append((node, 1))
    return Subcluster(cluster=replace(cluster, groups=tuple(merged)), devices=tuple(sorted(kept)))
