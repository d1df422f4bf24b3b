"""Device orders: which devices a plan uses and in which order, where devices are not all alike.

In: a Cluster; how many positions and replicas, of how many devices a replica. Out: the devices position by position,
replica by replica, of every way to line them up that is searched. Where all are alike there is one: cluster order.

A group is `degree` devices that may be a replica (`topology.replica_groups`). Groups of the same chips in nodes of the
same kind are a class. Searched are, beside the first groups in cluster order,

    orders      any choice of classes in any order, others left out; of more than `MANY_CLASSES` classes those from the
                fastest or slowest, and from the most or least memory, down, up to any of them
    packed      the groups of the chosen classes one after the other, as many as are needed
    positions   of each class in turn as many positions as it can fill; every position of one class
    replicas    of each class in turn as many replicas as it can fill; every replica, from first to last position, of
                one class, its groups side by side

Groups of a class are always taken from its first on.

`fast_subclusters` are what is left where the slower classes are taken away. A plan of one is a plan of the whole; where
so many plans are possible that a search ends before the last is excluded, it begins with these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby, permutations

from placer.cluster.cluster import Cluster, Device, Node
from placer.cluster.topology import replica_groups
from placer.plans.plan import Plan

# Of larger nodes not every number of devices is tried.
SMALL_NODE = 7
# With more classes not every order of every choice of them is looked at.
MANY_CLASSES = 3

DeviceGroup = tuple[int, ...]
# The devices, position by position and replica by replica; empty for the first ones of the cluster in order.
DeviceOrder = tuple[int, ...]
CLUSTER_ORDER: DeviceOrder = ()


@lru_cache(maxsize=64)
def group_classes(cluster: Cluster, degree: int) -> tuple[tuple[DeviceGroup, ...], ...]:
    """The units of each class, in order of the first of each."""
    groups = replica_groups(cluster, degree)
    if len(cluster.groups) == 1 and len(cluster.groups[0][0].devices) == 1:
        return (groups,) if groups else ()
    # As far as steps can see.
    nodes = {id(n): replace(n, name="", cores=1, memory_bytes=0, storage=None) for n, _ in cluster.groups}
    kinds: dict[tuple[Device | Node, ...], int] = {}
    first: dict[tuple[int, ...], int] = {}
    found: dict[int, list[DeviceGroup]] = {}
    for unit in groups:
        key = tuple(id(each) for d in unit for each in (cluster.devices[d], cluster.nodes[cluster.node_of[d]]))
        if key not in first:
            like = tuple(
                each for d in unit for each in (cluster.devices[d], nodes[id(cluster.nodes[cluster.node_of[d]])])
            )
            first[key] = kinds.setdefault(like, len(kinds))
        found.setdefault(first[key], []).append(unit)
    return tuple(tuple(groups) for groups in found.values())


@lru_cache(maxsize=64)
def is_mixed(cluster: Cluster, degree: int = 1) -> bool:
    """Whether there is another order than the first devices in order."""
    own = group_classes(cluster, degree)
    return len(own) > 1 or any(unit[0] != index * degree for index, unit in enumerate(own[0] if own else ()))


@lru_cache(maxsize=64)
def group_count(cluster: Cluster, degree: int) -> int:
    """How many groups there are."""
    return sum(len(own) for own in group_classes(cluster, degree))


@lru_cache(maxsize=64)
def node_degrees(cluster: Cluster) -> tuple[int, ...]:
    """Numbers of devices of a node that are tried as a replica: all of a small node's, of a larger one's powers of two
    and what divides it, or its devices of a kind."""
    found = {1}
    for node, _ in cluster.groups:
        if node.size <= SMALL_NODE:
            found.update(range(2, node.size + 1))
        found.update(1 << e for e in range(node.size.bit_length()))
        for size in {node.size, *(count for _, count in node.devices)}:
            found.update(d for d in range(2, size + 1) if size % d == 0)
    return tuple(sorted(found))


@lru_cache(maxsize=4096)
def device_orders(cluster: Cluster, positions: int, replicas: int, degree: int) -> tuple[DeviceOrder, ...]:
    """Every way to line up, cluster order first, none twice."""
    found = list(dict.fromkeys(_every(cluster, positions, replicas, degree)))
    plain = tuple(range(positions * replicas * degree))
    return tuple(CLUSTER_ORDER if device_order == plain else device_order for device_order in found)


def _every(cluster: Cluster, positions: int, replicas: int, degree: int) -> Iterator[DeviceOrder]:
    count, own = positions * replicas, group_classes(cluster, degree)
    yield _devices(sorted(chain.from_iterable(own))[:count])
    if len(own) < 2:
        return
    for chosen in class_orders(cluster, degree):
        packed = list(chain.from_iterable(chosen))
        if len(packed) >= count:
            yield _devices(packed[:count])
        rows = _runs(chosen, replicas)
        if len(rows) >= positions:
            yield _devices(list(chain.from_iterable(rows[:positions])))
        columns = _runs(chosen, positions)
        if len(columns) >= replicas:
            yield _devices([columns[r][p] for p in range(positions) for r in range(replicas)])


@lru_cache(maxsize=64)
def class_orders(cluster: Cluster, degree: int) -> tuple[tuple[tuple[DeviceGroup, ...], ...], ...]:
    """The choices of classes that are looked at, each in its order."""
    own = group_classes(cluster, degree)
    if len(own) <= MANY_CLASSES:
        return tuple(chosen for count in range(len(own), 0, -1) for chosen in permutations(own, count))
    chips = [cluster.devices[groups[0][0]] for groups in own]
    ranked = []
    for most in ([chip.rate("float32") for chip in chips], [chip.memory_bytes for chip in chips]):
        down = tuple(own[i] for i in sorted(range(len(own)), key=lambda i: (-most[i], i)))
        ranked += [down, down[::-1]]
    return tuple(dict.fromkeys(order[:count] for order in ranked for count in range(len(own), 0, -1)))


def group_totals(cluster: Cluster, degree: int) -> tuple[int, ...]:
    """The numbers of groups of all choices of classes, ascending."""
    return tuple(sorted({sum(map(len, chosen)) for chosen in class_orders(cluster, degree)}))


def _runs(chosen: tuple[tuple[DeviceGroup, ...], ...], size: int) -> list[tuple[DeviceGroup, ...]]:
    """Runs of `size` groups of one class, as many as each class in turn can fill."""
    return [own[i : i + size] for own in chosen for i in range(0, len(own) - size + 1, size)]


def _devices(chosen: list[DeviceGroup]) -> DeviceOrder:
    return tuple(chain.from_iterable(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcluster:
    """A cluster of some devices of another one: device d is `devices[d]` there."""

    cluster: Cluster
    devices: tuple[int, ...]

    def lifted(self, plan: Plan, whole: Cluster) -> Plan:
        """The plan of the part as one of the whole."""
        stages = tuple(replace(s, devices=tuple(self.devices[d] for d in s.devices)) for s in plan.stages)
        return replace(plan, cluster=whole, stages=stages, ledger=None, bound=None)

    def lowered(self, plan: Plan) -> Plan:
        """A plan of the whole that uses devices of the part alone as one of the part."""
        number = {device: index for index, device in enumerate(self.devices)}
        stages = tuple(replace(s, devices=tuple(number[d] for d in s.devices)) for s in plan.stages)
        return replace(plan, cluster=self.cluster, stages=stages, ledger=None, bound=None)


def fast_subclusters(cluster: Cluster) -> Iterator[Subcluster]:
    """The fastest class of devices, the fastest two, and so on without the whole."""
    own = sorted(group_classes(cluster, 1), key=lambda units: (-cluster.devices[units[0][0]].rate("float32"), units[0]))
    for count in range(1, len(own)):
        yield subcluster(cluster, frozenset(device for units in own[:count] for (device,) in units))


def subcluster(cluster: Cluster, kept: frozenset[int]) -> Subcluster:
    """The devices `kept`, in nodes of what is left of them."""
    nodes: list[Node] = []
    start = 0
    for node in cluster.nodes:
        own = range(start, start + node.size)
        start += node.size
        left = tuple((cluster.devices[device], 1) for device in own if device in kept)
        if len(left) == node.size:
            left = node.devices
        if left:
            nodes.append(replace(node, devices=left))
    groups = tuple((node, len(list(alike))) for node, alike in groupby(nodes))
    return Subcluster(cluster=replace(cluster, groups=groups), devices=tuple(sorted(kept)))
