"""A path from throttled storage to a loader's caller, and what placer's data path predicts for it.

The machine is a cluster of one node: its disk is shared storage whose way out is the throttle, and of its cores one
more is told than decode, as one is kept for a device. The device takes whatever comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from examples.data_path.measured.parts import Disk, Format
from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import parse_cluster
from placer.costs.data_path.data_set import DataSet
from placer.costs.data_path.demand import uniform_demand
from placer.costs.data_path.path import DataPath, data_path

Part = Literal["storage", "workers", "cores", "host memory", "PCIe"]
# Samples a second that the device asks for: more than any path passes.
ASKED = 10**6
# Requests that the disk takes at once: more than there are workers.
AT_ONCE = 64

MACHINE = """
name: this machine
storage:
  {{latency: {latency} s, read: {read} B/s, write: {read} B/s, requests: {at_once}{random},
    nic: {{latency: 0, bandwidth: {throttle} B/s}}}}
nodes:
  - name: node
    devices: [{{kind: k80}}]
    link: pcie3
    cores: {cores}
    host: {{link: {{latency: 0, bandwidth: {memory} B/s}}, memory_bandwidth: {memory} B/s}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Samples of a format, loaded by so many workers (0: by the caller itself) on so many cores.

    bytes_per_second, requests_per_second: of the throttle; None: it does not bound them.
    """

    format: Format
    workers: int
    cores: int
    bytes_per_second: float | None = None
    requests_per_second: float | None = None

    @property
    def processes(self) -> int:
        """Those that load."""
        return max(1, self.workers)

    @property
    def throttle(self) -> str:
        """As people read it."""
        if self.requests_per_second is not None:
            return f"{self.requests_per_second:.0f} requests/s"
        return "none" if self.bytes_per_second is None else f"{self.bytes_per_second / 1e6:.1f} MB/s"

    def relieved(self, part: Part) -> Path:
        """The same with twice the storage, one more process that loads, or one more core."""
        if part == "storage":
            return replace(
                self,
                bytes_per_second=None if self.bytes_per_second is None else 2 * self.bytes_per_second,
                requests_per_second=None if self.requests_per_second is None else 2 * self.requests_per_second,
            )
        return replace(self, workers=self.processes + 1) if part == "workers" else replace(self, cores=self.cores + 1)


def predicted(path: Path, disk: Disk) -> DataPath:
    """What placer predicts."""
    cluster = machine(path, disk)
    data_set = DataSet(
        name=path.format.name,
        samples=path.format.samples,
        stored_bytes=path.format.stored_bytes,
        decoded_bytes=path.format.decoded_bytes,
        sent_bytes=path.format.decoded_bytes,
        decode_seconds=path.format.core_seconds,
        at_random=path.format.at_random,
        workers=path.workers,
    )
    return data_path(data_set, cluster, uniform_demand(cluster, ASKED))


def machine(path: Path, disk: Disk) -> Cluster:
    """This machine with the throttle and the cores of a path; it has no memory that would hold the set."""
    requests = path.requests_per_second
    at_random = "" if requests is None else f", random_read: {requests * path.format.stored_bytes} B/s"
    text = MACHINE.format(
        latency=f"{disk.latency_seconds:.9f}",
        read=disk.read_bandwidth,
        at_once=AT_ONCE,
        random=at_random,
        throttle=disk.read_bandwidth if path.bytes_per_second is None else path.bytes_per_second,
        cores=path.cores + 1,
        memory=disk.memory_bandwidth,
    )
    return parse_cluster(text)


def bottleneck(found: DataPath) -> Part:
    """The part that binds."""
    (one,) = {_part(resource.kind) for resource in found.flow.binding}
    return one


def clear_of_ties(found: DataPath, margin: float) -> bool:
    """Whether what binds passes less than any other part by `margin` of it."""
    binds, parts = bottleneck_rate(found), dict[Part, float]()
    for one in found.chains.resources:
        part = _part(one.kind)
        parts[part] = min(parts.get(part, float("inf")), float(one.capacity))
    return sum(rate <= binds * (1 + margin) for rate in parts.values()) == 1


def bottleneck_rate(found: DataPath) -> float:
    """Samples a second of the weakest part."""
    return min(float(one.capacity) for one in found.chains.resources)


def _part(kind: str) -> Part:
    parts: dict[str, Part] = {
        "disks": "storage", "network cards": "storage", "workers": "workers", "cores": "cores",
        "host memory": "host memory", "PCIe": "PCIe",
    }  # fmt: skip
    return parts[kind]
