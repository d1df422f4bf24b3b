"""Cluster: devices in nodes, nodes on networks. Unequal devices, nodes and links are ordinary.

Devices are numbered 0..n-1 over `groups` in order, node by node. A message between two devices of a node uses the
node's `link`; between nodes it leaves through each node's `nic` (shared by the node's devices) and crosses every
network level up to the first that holds both nodes (`Level.nodes` nodes per group of that level, 0 for all).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import log
from os import PathLike
from typing import Annotated, Literal

from pydantic import Field

from placer.cluster.kernels import TorchKernels
from placer.errors import UsageError
from placer.io.bounds import AchievedShare, Amount, AmountAboveZero, Count, CountFromOne

# Devices are listed one by one; more than this is a slip of the pen, and would fill the memory.
MOST_DEVICES = 2**20
# How a note begins that says that a calibration was disturbed.
DOUBT = "measured while"

Backend = Literal["cpu", "cuda"]
# What products of a chip are rated by.
RateName = Annotated[str, Field(pattern=r"^(float64|float32|tfloat32|bfloat16|float16|float8|float4)$")]
# FlashAttention-2 on an A100 (arXiv:2307.08691, section 4.1): up to 73% of the peak forward, 63% backward.
FLASH_SHARES = (0.73, 0.63)
# (op, share forward, share backward).
OpShare = tuple[str, AchievedShare, AchievedShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Something bytes cross: seconds per message and bytes/second in one direction.

    `bandwidth` is nominal and of ONE of the `ports`: a message between two devices uses one port (one NIC of a node's
    eight, one xGMI link of a chip's seven), a collective all it can reach. `share` of it is what a message achieves,
    `collective_share` what devices achieve that all send at once (None: the same). `setup_seconds` is the fixed cost
    of one collective on it.
    """

    name: str
    latency_seconds: Amount
    bandwidth: AmountAboveZero
    source: str = ""
    ports: CountFromOne = 1
    share: AchievedShare = 1.0
    collective_share: AchievedShare | None = None
    setup_seconds: Amount = 0.0

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency_seconds >= 0 and self.ports >= 1 and self.share > 0):
            raise UsageError(f"link {self.name}: bandwidth, ports and share must be positive, latency not negative")

    @property
    def shared(self) -> float:
        """The achieved share of `bandwidth` in a collective."""
        return self.share if self.collective_share is None else self.collective_share

    def seconds(self, size: float) -> float:
        """Seconds for one message of `size` bytes."""
        return self.latency_seconds + size / (self.bandwidth * self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Achieved share of a peak rate by size: points (FLOPs or bytes, share), interpolated in log size, flat outside."""

    points: tuple[tuple[AmountAboveZero, AchievedShare], ...]
    source: str = ""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or any(not low < high for low, high in pairwise(sizes)):
            raise UsageError("the points of an efficiency curve must rise in size, and there must be one at least")

    def share(self, size: float) -> float:
        """The share at `size`, interpolated."""
        if size <= self.points[0][0]:
            return self.points[0][1]
        for (low, low_share), (high, high_share) in pairwise(self.points):
            if size <= high:
                return low_share + (high_share - low_share) * log(size / low) / log(high / low)
        return self.points[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A kind of chip, the same whatever its name. `rates` are peak dense FLOP/s by dtype name; `curve` how much of it
    products of a size reach.

    `curves` says it by dtype where it is known apart (`efficiency` asks both).
    `multiprocessors` is what a product's tiles are spread over (0: unknown, or no such thing); with it, efficiency is
    computed per shape and the curve gives only the ceiling.
    `sustained` is what is left of the rate of products in the steps of a training run, where the chip is warm and its
    power limited, beside the best product alone. `flash_shares` of the peak rate fused attention reaches, forward and
    backward: of the kernel that torch runs, `tuned_shares` of the vendor's own (cuDNN's, FlashAttention-3), and
    `first_flash_shares` of the first FlashAttention.
    The default shares are a GPU's: attention on a CPU is held to shares that were measured only.
    `memory_share` is the achieved share of `memory_bandwidth`; `launch_seconds` the fixed cost of one kernel or op.
    `communication_cores` are those beside a process's own threads that its communication finds free (None: it needs
    none, as on accelerators, or nothing is known): what it lacks of one core it takes from the computation beside it.
    `op_shares` are what ops reach in a model, by name, forward and backward: products of what the curve says of their
    size, other ops of `memory_bandwidth`. Where they name an op, they stand for `memory_share`. `head_seconds` fused
    attention takes of each head of a row beside its products, forward and backward.
    `kernels` are torch's own on a GPU, where they were measured; `op_shares` then are theirs, too, those of 16 bits by
    `name/16` where they differ.
    """

    name: str = field(compare=False)
    backend: Backend
    memory_bytes: CountFromOne
    memory_bandwidth: AmountAboveZero
    rates: tuple[tuple[RateName, AmountAboveZero], ...]
    launch_seconds: Amount
    curve: Curve
    memory_share: AchievedShare = 1.0
    overhead_bytes: Count = 0
    source: str = field(default="", compare=False)
    curves: tuple[tuple[RateName, Curve], ...] = ()
    multiprocessors: Count = 0
    sustained: AchievedShare = 1.0
    flash_shares: tuple[AchievedShare, AchievedShare] = FLASH_SHARES
    tuned_shares: tuple[AchievedShare, AchievedShare] = FLASH_SHARES
    first_flash_shares: tuple[AchievedShare, AchievedShare] = FLASH_SHARES
    communication_cores: Amount | None = None
    op_shares: tuple[OpShare, ...] = ()
    head_seconds: tuple[Amount, Amount] = (0.0, 0.0)
    kernels: TorchKernels | None = None

    def __post_init__(self) -> None:
        for what, known in (("rates", self.rates), ("curves", self.curves)):
            names = [dtype for dtype, _ in known]
            if len(set(names)) != len(names):
                raise UsageError(f"device {self.name}: {what} names a dtype twice: {', '.join(names)}")
        if "float32" not in dict(self.rates):
            raise UsageError(f"device {self.name}: rates needs float32: types the chip lacks run at that rate")

    def __hash__(self) -> int:
        """Of what tells kinds of chip apart at once: all fields with their curves are hashed for every device asked."""
        return hash((self.memory_bandwidth, self.memory_bytes, self.launch_seconds))

    def efficiency(self, dtype: str, flops: float) -> float:
        """The share of `rate(dtype)` that one product of `flops` FLOPs reaches."""
        return dict(self.curves).get(dtype, self.curve).share(flops)

    @property
    def hidden(self) -> float:
        """The share of a computation that can run while gradients are summed beside it."""
        return 1.0 if self.communication_cores is None else min(1.0, self.communication_cores)

    def rate(self, dtype: str) -> float:
        """Peak FLOP/s for products of `dtype`; types the chip lacks run at its float32 rate (float64 at half of it).

        Types of 8 bits have one rate, `float8`; chips without it run them as they do 16 bits; those of 4 bits run as
        those of 8 where the chip lacks them.
        """
        rates = dict(self.rates)
        if dtype.startswith("float4"):
            dtype = "float4" if "float4" in rates else "float8"
        if dtype.startswith("float8"):
            dtype = "float8" if "float8" in rates else "bfloat16"
        if dtype in rates:
            return rates[dtype]
        return rates["float32"] / (2 if dtype == "float64" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where training data lies: `disks` alike (or streams of an object store), of each: seconds per request,
    bytes/second of reading in sequence and of writing.

    random_read_bandwidth: bytes/second of reading samples one by one at random, where that is known; else it follows
    from the latency and the `requests` a disk serves at the same time. capacity_bytes: of one disk; 0: not known.
    """

    name: str
    latency_seconds: Amount
    read_bandwidth: AmountAboveZero
    write_bandwidth: AmountAboveZero
    source: str = ""
    disks: CountFromOne = 1
    random_read_bandwidth: AmountAboveZero | None = None
    requests: CountFromOne = 1
    capacity_bytes: Count = 0

    def read_rate(self, size: float, *, at_random: bool) -> float:
        """Bytes/second that one disk reads: in sequence, or in single requests of `size` bytes at random.

        Of `requests` at the same time each takes the latency and its bytes: requests x size / (latency + size / read),
        and never more than in sequence.
        """
        if not at_random:
            return self.read_bandwidth
        if self.random_read_bandwidth is not None:
            return self.random_read_bandwidth
        return min(self.read_bandwidth, self.requests * size / self.request_seconds(size))

    def request_seconds(self, size: float) -> float:
        """Seconds in which one disk that does nothing else answers a request of `size` bytes at random."""
        alone = self.latency_seconds + size / self.read_bandwidth
        if self.random_read_bandwidth is None or self.requests > 1:
            return alone
        return max(alone, size / self.random_read_bandwidth)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStorage:
    """Storage that all nodes read from, through its own network cards (None: they never bind)."""

    storage: Storage
    nic: Link | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host's memory: the link of each device to it, and its bandwidth in bytes/second, which they share."""

    link: Link
    memory_bandwidth: AmountAboveZero


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host: its devices (kind and count, in order), the link between them, its way out, its CPU cores and memory."""

    name: str
    devices: tuple[tuple[Device, CountFromOne], ...]
    link: Link
    nic: Link | None = None
    cores: CountFromOne = 1
    memory_bytes: Count = 0
    storage: Storage | None = None
    host: Host | None = None

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(count for _, count in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the network between nodes: groups of `nodes` nodes (0: all of them) joined by `link` per node."""

    name: str
    link: Link
    nodes: Count = 0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines. `measured` says the constants were measured on the machine itself."""

    name: str
    groups: tuple[tuple[Node, CountFromOne], ...]
    levels: tuple[Level, ...] = ()
    measured: bool = False
    notes: tuple[str, ...] = ()
    storage: SharedStorage | None = None

    def __post_init__(self) -> None:
        if not self.groups or any(count < 1 or node.size < 1 for node, count in self.groups):
            raise UsageError(f"cluster {self.name} has a group of zero nodes or zero devices; give at least one")
        total = sum(count * node.size for node, count in self.groups)
        if total > MOST_DEVICES:
            raise UsageError(f"cluster {self.name} has {total} devices; at most {MOST_DEVICES} can be described")

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node in order."""
        return tuple(node for node, count in self.groups for _ in range(count))

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device in order of its number."""
        return tuple(d for node in self.nodes for d, count in node.devices for _ in range(count))

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node index of each device."""
        return tuple(i for i, node in enumerate(self.nodes) for _ in range(node.size))

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @cached_property
    def backends(self) -> frozenset[Backend]:
        """What runs on its devices: `cpu`, `cuda` or both."""
        return frozenset(device.backend for node, _ in self.groups for device, _ in node.devices)

    @property
    def kernels(self) -> Backend:
        """Whose kernels plans are priced with: of accelerators where there are some."""
        return "cuda" if "cuda" in self.backends else "cpu"

    def on_cpus(self, devices: Iterable[int]) -> bool:
        """Whether some of `devices` are CPUs."""
        return "cpu" in self.backends and any(self.devices[device].backend == "cpu" for device in devices)

    def unlike(self, devices: Iterable[int]) -> bool:
        """Whether some of `devices` are CPUs and others are not, so that no one library reduces over them."""
        if len(self.backends) == 1:
            return False
        return len({self.devices[device].backend for device in devices if 0 <= device < self.size}) > 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """Those of the notes that say why a measurement of this machine may be far off."""
        return tuple(note for note in self.notes if note.startswith(DOUBT))

    def level_of(self, nodes: set[int]) -> int:
        """The first network level whose groups hold all of `nodes`; -1 within one node."""
        if len(nodes) == 1:
            return -1
        for index, level in enumerate(self.levels):
            if level.nodes == 0 or len({n // level.nodes for n in nodes}) == 1:
                return index
        return len(self.levels) - 1

    @staticmethod
    def load(spec: Cluster | str) -> Cluster:
        """A Cluster from itself, a YAML path, a catalogue name with counts (`h100x8*4`), `local` or `localx4`.

        Raises UsageError for an unknown name, unit or missing field, naming the line.
        """
        if isinstance(spec, Cluster):
            return spec
        if not isinstance(spec, str | PathLike) or not str(spec).strip():
            raise UsageError(
                f"the cluster is {spec!r}; give a Cluster, a cluster file, a name such as h100x8*4, or localx2"
            )
        from placer.cluster.catalogue import load_cluster  # the reader needs these types

        return load_cluster(str(spec))
