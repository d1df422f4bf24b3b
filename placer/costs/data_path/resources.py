"""The resources on the way of a sample, each with its units and the samples a second that one unit passes.

    disks           bytes/second of reading / stored bytes
    network cards   bandwidth x achieved share / stored bytes, of one port
    host memory     bandwidth / (2 x stored + 2 x decoded): both are written there once and read from there once
    workers         1 / (seconds of reading + seconds of one core for a sample), of one loading process
    cores           1 / seconds of one core for a sample
    PCIe            bandwidth x achieved share of a device's link to the host / sent bytes

What a cluster does not describe does not bind, and is named in a note. A core is kept for each device, whose process
launches its kernels, but one core at least decodes. CPU devices compute on the very cores that decode: a sample takes
its share of the step and its seconds of decoding, one after the other; so it does where the process that trains loads.
A worker waits for each sample that is read at random, and decodes it then; shards are read ahead, and from host memory
there is nothing to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from placer.cluster.cluster import Link, SharedStorage, Storage
from placer.costs.data_path.caching import Place
from placer.costs.data_path.data_set import DataSet, Where
from placer.costs.data_path.demand import NodeDemand, exact

Kind = Literal["disks", "network cards", "host memory", "workers", "cores", "PCIe"]
# Of what one may add some.
ADDABLE: tuple[Kind, ...] = ("disks", "network cards", "workers", "cores")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """`units` of one kind in each of `nodes` nodes; a unit passes `rate` samples a second.

    wanted: samples a second that devices ask of it, of each node. computes: the units compute the model besides, so
    that no number of them lets devices never wait.
    """

    kind: Kind
    where: str
    units: int
    rate: Fraction
    wanted: Fraction
    nodes: int = 1
    computes: bool = False

    @property
    def capacity(self) -> Fraction:
        """Samples a second of all nodes."""
        each = self.units * self.rate
        if self.computes:
            each = 1 / (1 / self.wanted + 1 / each)
        return each * self.nodes

    @property
    def needed(self) -> int:
        """Units of each node with which devices never wait for it, if they do nothing else."""
        return -(-self.wanted // self.rate)

    @property
    def missing(self) -> int:
        """Units to add in each node."""
        return self.needed if self.computes else max(0, self.needed - self.units)

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.kind} of {self.where}"

    def relieved(self) -> Resource:
        """The same with as many units as are needed."""
        return replace(self, units=max(self.units, self.needed), computes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Alike nodes: what they pass samples through one after the other, and whether those come from shared storage."""

    demand: NodeDemand
    place: Place
    from_shared: bool
    chain: tuple[Resource, ...]


def branch(data_set: DataSet, demand: NodeDemand, where: Where, place: Place, shared: SharedStorage | None) -> Branch:
    """The chain of the nodes of `demand`, which read the set from `place`."""
    from_shared = where == "shared" and place == "anew"
    storage = shared.storage if from_shared and shared is not None else demand.node.storage
    read: list[Resource | None] = []
    if from_shared and demand.node.nic is not None:
        read.append(cards(demand.node.nic, data_set, demand.rate, demand.node.name, demand.count))
    if place == "local disk" or (place == "anew" and not from_shared):
        read.append(disks(demand.node.storage, data_set, demand.rate, demand.node.name, demand.count))
    waited = 0.0 if place == "host memory" or storage is None else _waited(data_set, storage)
    inside = (
        _memory(data_set, demand), _workers(data_set, demand, waited), _cores(data_set, demand), _pcie(data_set, demand)
    )  # fmt: skip
    chain = tuple(one for one in (*read, *(() if place == "device" else inside)) if one is not None)
    return Branch(demand=demand, place=place, from_shared=from_shared, chain=chain)


def shared_chain(data_set: DataSet, storage: SharedStorage, branches: tuple[Branch, ...]) -> tuple[Resource, ...]:
    """The disks and cards of shared storage; none where nobody reads from it any more."""
    wanted = sum((one.demand.rate * one.demand.count for one in branches if one.from_shared), Fraction())
    if not wanted:
        return ()
    name = "shared storage"
    found = (
        disks(storage.storage, data_set, wanted, name, 1),
        None if storage.nic is None else cards(storage.nic, data_set, wanted, name, 1),
    )
    return tuple(one for one in found if one is not None)


def unknown(data_set: DataSet, one: Branch) -> tuple[str, ...]:
    """What the cluster does not say of a node, and so does not bind."""
    node, nothing = one.demand.node, []
    if one.place == "device":
        return ()
    if one.from_shared and node.nic is None:
        nothing.append("its network card")
    if one.place == "anew" and not one.from_shared and node.storage is None:
        nothing.append("its storage")
    if node.host is None and not computes(one.demand):
        nothing.append("the way from host memory to its devices")
    return (f"{node.name}: {' and '.join(nothing)} is not described, and taken not to bind",) if nothing else ()


def computes(demand: NodeDemand) -> bool:
    """Whether devices of the node are its cores."""
    return any(device.backend == "cpu" for device, _ in demand.node.devices)


def disks(storage: Storage | None, data_set: DataSet, wanted: Fraction, where: str, nodes: int) -> Resource | None:
    """The disks of a storage, for one sample after the other."""
    if storage is None:
        return None
    rate = storage.read_rate(data_set.stored_bytes, at_random=data_set.at_random)
    each = exact(rate) / exact(data_set.stored_bytes)
    return Resource(kind="disks", where=where, units=storage.disks, rate=each, wanted=wanted, nodes=nodes)


def cards(nic: Link, data_set: DataSet, wanted: Fraction, where: str, nodes: int) -> Resource:
    """The ports of a way out."""
    rate = exact(nic.bandwidth) * exact(nic.share) / exact(data_set.stored_bytes)
    return Resource(kind="network cards", where=where, units=nic.ports, rate=rate, wanted=wanted, nodes=nodes)


def _memory(data_set: DataSet, demand: NodeDemand) -> Resource | None:
    if demand.node.host is None:
        return None
    moved = 2 * exact(data_set.stored_bytes) + 2 * exact(data_set.decoded_bytes)
    rate = exact(demand.node.host.memory_bandwidth) / moved
    return _of_node("host memory", demand, 1, rate)


def _waited(data_set: DataSet, storage: Storage) -> float:
    """Seconds that a worker waits for a sample of a storage with nothing else to do."""
    return storage.request_seconds(data_set.stored_bytes) if data_set.at_random else 0.0


def _workers(data_set: DataSet, demand: NodeDemand, waited: float) -> Resource | None:
    seconds = exact(waited) + exact(data_set.core_seconds)
    if data_set.workers is None or not seconds:
        return None
    found = _of_node("workers", demand, max(1, data_set.workers) * demand.reading, 1 / seconds)
    return replace(found, computes=not data_set.workers)


def _cores(data_set: DataSet, demand: NodeDemand) -> Resource | None:
    if not data_set.core_seconds:
        return None
    rate, cores = 1 / exact(data_set.core_seconds), demand.node.cores
    if computes(demand):
        return replace(_of_node("cores", demand, cores, rate), computes=True)
    return _of_node("cores", demand, max(1, cores - demand.node.size), rate)


def _pcie(data_set: DataSet, demand: NodeDemand) -> Resource | None:
    if demand.node.host is None or computes(demand):
        return None
    link = demand.node.host.link
    rate = exact(link.bandwidth) * exact(link.share) / exact(data_set.sent_bytes)
    return _of_node("PCIe", demand, demand.reading, rate)


def _of_node(kind: Kind, demand: NodeDemand, units: int, rate: Fraction) -> Resource:
    return Resource(kind=kind, where=demand.node.name, units=units, rate=rate, wanted=demand.rate, nodes=demand.count)
