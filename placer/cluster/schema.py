"""What a cluster file may say, field by field (pydantic), and the values it becomes.

A link, storage or kind of device may be a catalogue name (`link: nvlink3`) or take one and change some of its fields
(`{use: nvlink3, share: 70%}`).
"""

from __future__ import annotations

from itertools import pairwise
from math import floor, isfinite
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from placer.cluster.cluster import (
    FLASH_SHARES,
    MOST_DEVICES,
    Cluster,
    Curve,
    Device,
    Host,
    Level,
    Link,
    Node,
    SharedStorage,
    Storage,
)
from placer.cluster.hardware_data import Section, find
from placer.cluster.kernels import TorchKernels
from placer.cluster.tile_curve import tile_curve
from placer.errors import UsageError
from placer.io.bounds import AchievedShare, Amount, AmountAboveZero, CountFromOne
from placer.io.bounds import Count as Counted
from placer.io.units import Kind, quantity

Dtype = Literal["float64", "float32", "tfloat32", "bfloat16", "float16", "float8", "float4"]


def _read(kind: Kind) -> BeforeValidator:
    def read(text: object) -> float:
        try:
            found = quantity(text, kind)
        except UsageError as error:
            raise ValueError(str(error)) from None
        # Part of a byte holds nothing: 0.6 GiB are whole bytes and some.
        return float(floor(found)) if kind == "bytes" and isfinite(found) else found

    return BeforeValidator(read)


def _share(text: object) -> object:
    """`87%` or `0.87`."""
    if isinstance(text, str) and text.strip().endswith("%"):
        try:
            return float(text.strip()[:-1]) / 100
        except ValueError:
            return text
    return text


def _number(text: object) -> object:
    if isinstance(text, bool):
        raise ValueError("expected a number")
    return text


Bytes = Annotated[CountFromOne, _read("bytes")]
BytesOrNone = Annotated[Counted, _read("bytes")]
Bandwidth = Annotated[AmountAboveZero, _read("bandwidth")]
Seconds = Annotated[Amount, _read("seconds")]
Rate = Annotated[AmountAboveZero, _read("rate")]
Flops = Annotated[AmountAboveZero, _read("flops")]
Share = Annotated[AchievedShare, BeforeValidator(_share), BeforeValidator(_number)]
# Of devices, nodes, ports and cores: of none there are more than devices can be described.
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=MOST_DEVICES)]
CountOrNone = Annotated[int, BeforeValidator(_number), Field(ge=0, le=MOST_DEVICES)]


class FileEntry(BaseModel):
    """A part of a cluster file; unknown fields are refused, a catalogue name may stand for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    section: ClassVar[Section | None] = None

    @model_validator(mode="before")
    @classmethod
    def from_catalogue(cls, data: object) -> object:
        """`data` with the catalogue's fields under it where it names an entry."""
        if cls.section is None or not isinstance(data, str | dict):
            return data
        fields = {"use": data} if isinstance(data, str) else data
        if "use" not in fields:
            return fields
        try:
            return {**find(cls.section, str(fields["use"])), **{k: v for k, v in fields.items() if k != "use"}}
        except UsageError as error:
            raise ValueError(f"{error}; `use` names an entry of the catalogue, never one of this file") from None


class SourcedEntry(FileEntry):
    """What the catalogue has too, and where its numbers come from."""

    name: str = ""
    source: str = ""
    measured: str = ""
    confidence: str = ""
    notes: str = ""


class LinkEntry(SourcedEntry):
    """A link: seconds per message, bytes/second of one port in one direction, ports, achieved shares."""

    section = "links"
    latency: Seconds
    bandwidth: Bandwidth
    ports: Count = 1
    share: Share = 1.0
    collective_share: Share | None = None
    setup: Seconds = 0.0

    def link(self, name: str) -> Link:
        """The link; `name` where the file gives none."""
        return Link(
            name=self.name or name,
            latency_seconds=self.latency,
            bandwidth=self.bandwidth,
            source=self.source,
            ports=self.ports,
            share=self.share,
            collective_share=self.collective_share,
            setup_seconds=self.setup,
        )


class EfficiencyEntry(FileEntry):
    """How much of the peak rate products reach: points (FLOPs, share), or `ceiling` with the chip's `processors`."""

    points: tuple[tuple[Flops, Share], ...] = ()
    ceiling: Share | None = None
    processors: Count | None = None
    source: str = ""

    @model_validator(mode="after")
    def complete(self) -> EfficiencyEntry:
        """Either form, whole and in order."""
        tiles = (self.ceiling, self.processors)
        if bool(self.points) == any(part is not None for part in tiles) or (not self.points and None in tiles):
            raise ValueError("give either points, or ceiling and processors")
        if any(low[0] >= high[0] for low, high in pairwise(self.points)):
            raise ValueError("points must rise in FLOPs")
        if not all(share for _, share in self.curve().points):
            raise ValueError("processors are too many for the ceiling: no product would reach anything")
        return self

    def curve(self) -> Curve:
        """The curve."""
        if self.ceiling is not None and self.processors is not None:
            return tile_curve(self.ceiling, self.processors, source=self.source)
        return Curve(points=self.points, source=self.source)


class KernelsEntry(FileEntry):
    """What torch's own kernels reach on a GPU."""

    sustained: Share
    misaligned: tuple[Share, Share]
    tensor_float_sums: Share
    attention: tuple[Share, Share]
    attention_float32: tuple[Share, Share]
    depthwise: tuple[Share, Share]
    images: Share
    host_op: Seconds = Field(gt=0)
    streams: bool = False

    def kernels(self) -> TorchKernels:
        """The kernels."""
        return TorchKernels(
            sustained=self.sustained,
            misaligned=self.misaligned,
            tensor_float_sums=self.tensor_float_sums,
            attention=self.attention,
            attention_float32=self.attention_float32,
            depthwise=self.depthwise,
            images=self.images,
            host_op_seconds=self.host_op,
            streams=self.streams,
        )


class DeviceEntry(SourcedEntry):
    """A kind of chip."""

    section = "devices"
    backend: Literal["cpu", "cuda"] = "cuda"
    memory: Bytes
    memory_bandwidth: Bandwidth
    memory_share: Share = 1.0
    rates: dict[Dtype, Rate] = Field(min_length=1)
    launch: Seconds
    efficiency: EfficiencyEntry
    efficiency_by_dtype: dict[Dtype, EfficiencyEntry] = Field(default_factory=dict)
    overhead: BytesOrNone = 0
    multiprocessors: CountOrNone = 0
    sustained: Share = 1.0
    flash: tuple[Share, Share] = FLASH_SHARES
    tuned_flash: tuple[Share, Share] | None = None
    first_flash: tuple[Share, Share] | None = None
    communication_cores: float | None = Field(default=None, ge=0)
    head_seconds: tuple[Seconds, Seconds] = (0.0, 0.0)
    kernels: KernelsEntry | None = None
    ops: dict[str, tuple[Share, Share]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def complete(self) -> DeviceEntry:
        """A float32 rate is what other types fall back to."""
        if "float32" not in self.rates:
            raise ValueError("rates needs float32: types the chip lacks run at that rate")
        return self

    def device(self, name: str) -> Device:
        """The device; `name` where the file gives none."""
        return Device(
            name=self.name or name,
            backend=self.backend,
            memory_bytes=self.memory,
            memory_bandwidth=self.memory_bandwidth,
            rates=tuple((str(dtype), rate) for dtype, rate in self.rates.items()),
            launch_seconds=self.launch,
            curve=self.efficiency.curve(),
            memory_share=self.memory_share,
            overhead_bytes=self.overhead,
            source=self.source,
            curves=tuple((str(dtype), entry.curve()) for dtype, entry in self.efficiency_by_dtype.items()),
            multiprocessors=self.multiprocessors or self.efficiency.processors or 0,
            sustained=self.sustained,
            flash_shares=self.flash,
            tuned_shares=self.tuned_flash or self.flash,
            first_flash_shares=self.first_flash or self.flash,
            communication_cores=self.communication_cores,
            head_seconds=self.head_seconds,
            kernels=self.kernels.kernels() if self.kernels is not None else None,
            op_shares=tuple((name, *shares) for name, shares in self.ops.items()),
        )


class StorageEntry(SourcedEntry):
    """Where training data lies: some disks alike, or streams of an object store; all figures are of one."""

    section = "storage"
    latency: Seconds
    read: Bandwidth
    write: Bandwidth
    disks: Count = 1
    random_read: Bandwidth | None = None
    requests: Count = 1
    capacity: BytesOrNone = 0

    def storage(self) -> Storage:
        """The storage."""
        return Storage(
            name=self.name,
            latency_seconds=self.latency,
            read_bandwidth=self.read,
            write_bandwidth=self.write,
            source=self.source,
            disks=self.disks,
            random_read_bandwidth=self.random_read,
            requests=self.requests,
            capacity_bytes=self.capacity,
        )


class SharedStorageEntry(StorageEntry):
    """Storage that all nodes read from, and the network cards in front of it."""

    nic: LinkEntry | None = None

    def shared(self) -> SharedStorage:
        """The storage with its cards."""
        return SharedStorage(storage=self.storage(), nic=self.nic.link("storage nic") if self.nic is not None else None)


class HostEntry(FileEntry):
    """A host's memory: the link of a device to it, and its bandwidth."""

    link: LinkEntry
    memory_bandwidth: Bandwidth

    def host(self) -> Host:
        """The host."""
        return Host(link=self.link.link("host"), memory_bandwidth=self.memory_bandwidth)


class DevicesEntry(FileEntry):
    """Some devices of one kind in a node."""

    kind: str
    count: Count = 1


class NodeEntry(FileEntry):
    """Some equal nodes: their devices in order, the link between those, the way out, CPU cores, memory, storage."""

    name: str = "node"
    count: Count = 1
    devices: tuple[DevicesEntry, ...] = Field(min_length=1)
    link: LinkEntry | None = None
    nic: LinkEntry | None = None
    cores: Count = 1
    memory: BytesOrNone = 0
    storage: StorageEntry | None = None
    host: HostEntry | None = None

    @property
    def size(self) -> int:
        """Devices of one node."""
        return sum(entry.count for entry in self.devices)

    def node(self, kinds: dict[str, Device]) -> Node:
        """The node; `kinds` are the devices its entries name."""
        devices = tuple((kinds[entry.kind], entry.count) for entry in self.devices)
        return Node(
            name=self.name,
            devices=devices,
            link=self.link.link("link") if self.link is not None else link_of_one(devices[0][0]),
            nic=self.nic.link("nic") if self.nic is not None else None,
            cores=self.cores,
            memory_bytes=self.memory,
            storage=self.storage.storage() if self.storage is not None else None,
            host=self.host.host() if self.host is not None else None,
        )


class LevelEntry(FileEntry):
    """One level of the network: groups of `nodes` nodes (0: all) joined by `link`, per node."""

    name: str
    nodes: CountOrNone = 0
    link: LinkEntry


class ClusterEntry(FileEntry):
    """A cluster file."""

    name: str
    devices: dict[str, DeviceEntry] = Field(default_factory=dict)
    nodes: tuple[NodeEntry, ...] = Field(min_length=1)
    network: tuple[LevelEntry, ...] = ()
    measured: bool = False
    notes: tuple[str, ...] = ()
    storage: SharedStorageEntry | None = None

    def cluster(self) -> Cluster:
        """The cluster; its kinds of device are the file's own or the catalogue's."""
        kinds = {key: entry.device(key) for key, entry in self.devices.items()}
        for name in (entry.kind for node in self.nodes for entry in node.devices if entry.kind not in kinds):
            kinds[name] = DeviceEntry.model_validate({"use": name}).device(name)
        return Cluster(
            name=self.name,
            groups=tuple((node.node(kinds), node.count) for node in self.nodes),
            levels=tuple(Level(name=at.name, link=at.link.link(at.name), nodes=at.nodes) for at in self.network),
            measured=self.measured,
            notes=self.notes,
            storage=self.storage.shared() if self.storage is not None else None,
        )


def link_of_one(device: Device) -> Link:
    """The link of a node with one device: nothing crosses it, so it is as fast as the device's own memory."""
    return Link(name="none", latency_seconds=0.0, bandwidth=device.memory_bandwidth, source="one device in the node")
