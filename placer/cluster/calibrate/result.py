"""What the processes measured, and the Cluster it makes.

Times by size become a straight line: seconds = intercept + slope * bytes, relative errors weighed equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict

from placer.cluster.calibrate.kernel_shares import KernelTimes, kernel_shares, warm_share
from placer.cluster.calibrate.machine import available_memory, cpu_name, threads, total_memory, usable_cores
from placer.cluster.cluster import DOUBT, FLASH_SHARES, Cluster, Curve, Device, Host, Link, Node, OpShare
from placer.cluster.threads import topology
from placer.errors import ExecutionError
from placer.io.versions import installed

Points = tuple[tuple[float, float], ...]
# What stands for the convolutions of a network with channels first on a GPU, forward and backward, of products and of
# bytes: 21 of ResNet's and ConvNeXt's on one H200, beside what `placer/costs/compute` says of them (26 November 2026).
CONVOLUTIONS = {"conv2d": (0.90, 0.75), "conv2d/16": (0.90, 0.70)}
# Where other work took more than this of the time that was measured, windows were taken again in vain.
MOST_LOST = 0.1
# What caches hold is faster than memory: no share is larger (placer/io/bounds.py).
MOST_REACHED = 1.5


class AttentionTime(BaseModel):
    """Fused attention: FLOP/s of its products, and seconds of each head of a row beside them, forward and backward."""

    model_config = ConfigDict(frozen=True)
    rates: tuple[float, float]
    head_seconds: tuple[float, float]


class OpTime(BaseModel):
    """An op as in a model: the FLOPs of a product's forward (backward has twice as many), and forward and backward the
    bytes that it moves and its seconds."""

    model_config = ConfigDict(frozen=True)
    name: str
    flops: float = 0.0
    moved: tuple[float, float]
    seconds: tuple[float, float]

    def shares(self, rate: float, bandwidth: float) -> tuple[float, float]:
        """Of a product what it reaches of `rate` beside moving its bytes, of another op what of `bandwidth`."""
        if not self.flops:
            return self.moved[0] / self.seconds[0] / bandwidth, self.moved[1] / self.seconds[1] / bandwidth
        alone = [max(own - moved / bandwidth, own / 2) for own, moved in zip(self.seconds, self.moved, strict=True)]
        # None is faster in a model than by itself: where it seems so, what it is beside was disturbed.
        return min(1.0, self.flops / alone[0] / rate), min(1.0, 2 * self.flops / alone[1] / rate)


class HostCopies(BaseModel):
    """Copies between a GPU and its host as (bytes, seconds), and bytes/second of the host's memory."""

    model_config = ConfigDict(frozen=True)
    copies: Points
    memory_bandwidth: float


class DeviceMeasurement(BaseModel):
    """One device: products as (FLOPs, FLOP/s) by dtype, memory bytes/second at best and over a model's ops, seconds per
    op, bytes taken before any tensor; attention and ops as in a model.

    Of a GPU also its multiprocessors, torch's own kernels, and copies to and from its host.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    backend: str
    memory_bytes: int
    products: dict[str, Points]
    memory_bandwidth: float
    mixed_bandwidth: float
    launch_seconds: float
    overhead_bytes: int
    attention: AttentionTime | None = None
    ops: tuple[OpTime, ...] = ()
    multiprocessors: int = 0
    kernels: KernelTimes | None = None
    host_copies: HostCopies | None = None

    @property
    def attention_type(self) -> str:
        """The type in which attention was measured: that in which a GPU has kernels for it."""
        return "bfloat16" if self.backend == "cuda" else "float32"


class Calibration(BaseModel):
    """All devices, and messages and all-reduces as (bytes, seconds) medians over the pairs and ranks. lost: the share
    of the cores' time that other work took meanwhile."""

    model_config = ConfigDict(frozen=True)
    devices: tuple[DeviceMeasurement, ...]
    messages: Points = ()
    all_reduces: Points = ()
    wall_seconds: float = 0.0
    lost: float = 0.0


def local_description(measured: Calibration, *, name: str, load: float = 0.0, own_cores: int = 0) -> Cluster:
    """The cluster of one node that was measured while `load` cores were busy with something else.

    own_cores: those that each process was bound to, its communication with it (0: to none).
    """
    count = len(measured.devices)
    spare = communication_cores(min(topology().cores, usable_cores()), count, threads(count), own_cores)
    kinds = _kinds(measured.devices, spare)
    node = Node(
        name="this machine",
        devices=kinds,
        link=_link(measured, kinds[0][0]),
        cores=usable_cores(),
        memory_bytes=total_memory(),
        host=_host(measured.devices),
    )
    each = f"OMP_NUM_THREADS={threads(count)} each" + f", on {own_cores} cores of its own" * bool(own_cores)
    notes = (
        f"measured on {cpu_name()}, {usable_cores()} cores, torch {installed('torch')}: {count} processes at once, "
        f"{each}, in {measured.wall_seconds:.0f} s",
        *_doubts(load, measured.lost),
    )
    return Cluster(name=name, groups=((node, 1),), measured=True, notes=notes)


def _host(devices: Sequence[DeviceMeasurement]) -> Host | None:
    """The memory of a machine with GPUs and the link of each to it; None where that was not measured."""
    found = [device.host_copies for device in devices if device.host_copies is not None]
    if not found or len(found) < len(devices):
        return None
    copies = tuple((of[0][0], median(own for _, own in of)) for of in zip(*(one.copies for one in found), strict=True))
    line = fitted_line(copies)
    link = Link(
        name="host",
        latency_seconds=rounded(line.intercept),
        bandwidth=rounded(1 / line.slope),
        source="measured on this machine by placer calibrate",
    )
    return Host(link=link, memory_bandwidth=rounded(median(one.memory_bandwidth for one in found)))


def _doubts(load: float, lost: float) -> tuple[str, ...]:
    """A warning where other work took more than half of the machine, or much of the time that was measured."""
    if idle(load) and lost <= MOST_LOST:
        return ()
    busy = f"had a load average of {load:.1f} on {usable_cores()} cores"
    return (
        f"{DOUBT} other work {busy if not idle(load) else f'took {lost:.0%} of the time of its cores'}, so that "
        "predicted seconds may be far off: run placer calibrate again when the machine is idle",
    )


def idle(load: float) -> bool:
    """Whether `load` busy cores leave this machine free enough to measure."""
    return load <= usable_cores() / 2


def rounded(value: float) -> float:
    """Four digits: more than a measurement repeats."""
    return float(f"{value:.4g}")


def communication_cores(cores: int, processes: int, threads: int, own_cores: int = 0) -> float:
    """Cores that each process's communication has beside its threads.

    gloo's threads are as the system places them: on cores that no thread computes on, of a bound process (whose threads
    all inherit its cores) on its own.
    """
    return max(0.0, own_cores - threads if own_cores else cores / processes - threads)


def _kinds(devices: tuple[DeviceMeasurement, ...], spare: float) -> tuple[tuple[Device, int], ...]:
    """Equal devices in a row are one kind with the median of what they measured."""
    runs: list[list[DeviceMeasurement]] = []
    for device in devices:
        if runs and runs[-1][0].name == device.name:
            runs[-1].append(device)
        else:
            runs.append([device])
    return tuple((_device(run, len(devices), spare), len(run)) for run in runs)


def _device(run: list[DeviceMeasurement], count: int, spare: float) -> Device:
    """The kind of device a run of equal measurements shows."""
    first = run[0]
    source = "measured on this machine by placer calibrate"
    curves = {dtype: _products(run, dtype) for dtype in first.products}
    best = {dtype: max(rate for _, rate in points) for dtype, points in curves.items()}
    shares = {
        dtype: Curve(points=tuple((flops, rounded(rate / best[dtype])) for flops, rate in points), source=source)
        for dtype, points in curves.items()
    }
    timed = [device.kernels for device in run if device.kernels is not None]
    kernels = kernel_shares(timed, best) if len(timed) == len(run) else None
    bandwidth = rounded(median(device.memory_bandwidth for device in run))
    memory = first.memory_bytes if first.backend == "cuda" else available_memory() // count
    return Device(
        name=first.name,
        backend="cuda" if first.backend == "cuda" else "cpu",
        memory_bytes=memory,
        memory_bandwidth=bandwidth,
        rates=tuple((dtype, rounded(rate)) for dtype, rate in best.items()),
        launch_seconds=rounded(median(device.launch_seconds for device in run)),
        curve=shares["float32"],
        memory_share=min(1.0, rounded(median(device.mixed_bandwidth for device in run) / bandwidth)),
        overhead_bytes=int(median(device.overhead_bytes for device in run)),
        source=source,
        curves=tuple(shares.items()),
        flash_shares=_attention(run, best.get(first.attention_type, best["float32"])),
        head_seconds=_head_seconds(run),
        communication_cores=None if first.backend == "cuda" else spare,
        op_shares=_op_shares(run, best["float32"], shares["float32"], bandwidth) + _convolutions(first),
        multiprocessors=first.multiprocessors,
        sustained=warm_share(timed, best),
        kernels=kernels,
    )


def _op_shares(run: list[DeviceMeasurement], rate: float, curve: Curve, bandwidth: float) -> tuple[OpShare, ...]:
    """Of products what they reach of what one as large does by itself, of other ops of the memory's best; the mean of
    those that were measured under one name."""
    reached: dict[str, list[tuple[float, float]]] = {}
    for alike in zip(*(device.ops for device in run), strict=True):
        own = rate * curve.share(alike[0].flops) if alike[0].flops else rate
        shares = [one.shares(own, bandwidth) for one in alike]
        middle = median(ahead for ahead, _ in shares), median(behind for _, behind in shares)
        reached.setdefault(alike[0].name, []).append(middle)
    return tuple(
        (name, _mean_share(ahead for ahead, _ in found), _mean_share(behind for _, behind in found))
        for name, found in reached.items()
    )


def _convolutions(device: DeviceMeasurement) -> tuple[OpShare, ...]:
    """What stands for a GPU's convolutions, where its other ops were measured."""
    known = CONVOLUTIONS if device.backend == "cuda" and device.ops else {}
    return tuple((name, *shares) for name, shares in known.items())


def _mean_share(shares: Iterable[float]) -> float:
    return rounded(min(MOST_REACHED, fmean(shares)))


def _attention(run: list[DeviceMeasurement], rate: float) -> tuple[float, float]:
    """The shares of the float32 rate that attention's products reach, forward and backward."""
    found = [device.attention for device in run if device.attention is not None]
    if len(found) < len(run):
        return FLASH_SHARES
    forward, backward = zip(*(one.rates for one in found), strict=True)
    return rounded(min(1.0, median(forward) / rate)), rounded(min(1.0, median(backward) / rate))


def _head_seconds(run: list[DeviceMeasurement]) -> tuple[float, float]:
    """Seconds of a head of a row beside its products, forward and backward; none where that was not measured."""
    found = [device.attention.head_seconds for device in run if device.attention is not None]
    if len(found) < len(run):
        return 0.0, 0.0
    return rounded(median(ahead for ahead, _ in found)), rounded(median(behind for _, behind in found))


def _products(run: list[DeviceMeasurement], dtype: str) -> Points:
    """(FLOPs, median rate) over the devices."""
    together = zip(*(device.products[dtype] for device in run), strict=True)
    return tuple((points[0][0], median(rate for _, rate in points)) for points in together)


def _link(measured: Calibration, device: Device) -> Link:
    """The link between the devices: a line through the messages, one through the all-reduces.

    A ring all-reduce of n bytes over k devices takes setup + 2 (k-1) latency + 2 (k-1)/k n / bandwidth.
    """
    count = len(measured.devices)
    if count == 1:
        return Link(name="none", latency_seconds=0.0, bandwidth=device.memory_bandwidth, source="one device")
    message = fitted_line(measured.messages)
    collective = fitted_line(measured.all_reduces)
    bandwidth = 1 / message.slope
    ring = 2 * (count - 1) / count / collective.slope
    return Link(
        name="loopback" if device.backend == "cpu" else "between the GPUs",
        latency_seconds=rounded(message.intercept),
        bandwidth=rounded(bandwidth),
        collective_share=min(1.5, rounded(ring / bandwidth)),
        setup_seconds=rounded(max(0.0, collective.intercept - 2 * (count - 1) * message.intercept)),
        source="measured on this machine by placer calibrate",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLine:
    """seconds = intercept + slope * bytes; neither is negative, slope is positive."""

    intercept: float
    slope: float


def fitted_line(points: Sequence[tuple[float, float]]) -> FittedLine:
    """The line through (bytes, seconds), sizes rising, with the least sum of squared relative errors."""
    if len(points) < 2 or any(seconds <= 0 for _, seconds in points):
        raise ExecutionError(f"a measurement gave no usable times: {list(points)}; run placer calibrate again")
    sizes, times = [size for size, _ in points], [seconds for _, seconds in points]
    weights = [1 / seconds**2 for seconds in times]
    size, time = _mean(sizes, weights), _mean(times, weights)
    spread = _mean([(x - size) ** 2 for x in sizes], weights)
    slope = _mean([(x - size) * (y - time) for x, y in points], weights) / spread
    if slope <= 0:  # noise swallowed the size: the largest message is all that is known
        return FittedLine(intercept=0.0, slope=times[-1] / sizes[-1])
    if time < slope * size:  # below zero at no bytes: the best line through the origin
        through = _mean([x * y for x, y in points], weights) / _mean([x * x for x in sizes], weights)
        return FittedLine(intercept=0.0, slope=through)
    return FittedLine(intercept=time - slope * size, slope=slope)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
