"""measure(ranks): what the processes of an emulated cluster reach, from which its machines become a Cluster.

    device            one process without brakes; its rates times, its seconds of an op by, its share of a core
    message           min(link rate * wire share, share of a core / core seconds per byte), latency
    all-reduce        the same, times the share of it that the ring of all nodes' devices reaches

Only shares and rates differ between machines made from one measurement: those with a slower node or link are too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from examples.measured.emulated.machines import Machines
from examples.measured.emulated.ranks import Ranks
from examples.measured.emulated.tasks import Brakes, Points, all_reduce_seconds, measured_device, message_seconds
from placer.cluster.calibrate.result import FittedLine, fitted_line
from placer.cluster.cluster import Cluster, Device, Link, Node

MEGABIT = 1e6 / 8  # bytes
MEASURING_SECONDS = 400.0
MOST_COLLECTIVE_SHARE = 1.5  # as a cluster file allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """wire: achieved share of a link's rate; core_seconds: of one byte sent and received; setup: of an all-reduce."""

    device: Device
    latency: float
    wire: float
    core_seconds: float
    collective_share: float = 1.0
    setup: float = 0.0

    def cluster(self, machines: Machines) -> Cluster:
        """The description of `machines` that predictions are made from."""
        groups = tuple((self._node(machines, index), 1) for index in range(len(machines.nodes)))
        return Cluster(name=machines.name, groups=groups, measured=True)

    def bandwidth(self, megabits: float, share: float) -> float:
        """Bytes/second of a message through a link by a process with `share` of a core."""
        return min(megabits * MEGABIT * self.wire, share / self.core_seconds)

    def _node(self, machines: Machines, index: int) -> Node:
        node = machines.nodes[index]
        device = _slowed(self.device, node.share)
        inside = Link(
            name="inside", latency_seconds=self.latency, bandwidth=node.share / self.core_seconds, source="measured"
        )
        nic = Link(
            name=f"{node.megabits:g} Mbit/s",
            latency_seconds=self.latency,
            bandwidth=self.bandwidth(node.megabits, node.share),
            collective_share=self.collective_share,
            setup_seconds=self.setup,
            source="measured",
        )
        memory = node.devices * device.memory_bytes
        return Node(name=f"node{index}", devices=((device, node.devices),), link=inside, nic=nic, memory_bytes=memory)


def measured_on(ranks: Ranks, device: Device | None = None) -> Measured:
    """Measure, the device only where none is given."""
    machines = ranks.emulated.machines
    first = [machines.node_of.index(node) for node in range(len(machines.nodes))]
    brakes = {place: (ranks.emulated.group(place), machines.shares[place]) for place in first}
    messages = {place: _line(ranks, [first[0], place], brakes, message_seconds) for place in first[1:]}
    rates = {place: _narrowest(machines, first[0], place) for place in first[1:]}
    found = Measured(
        device=device or ranks.run([0], measured_device, timeout=MEASURING_SECONDS)[0],
        latency=median(one.intercept for one in messages.values()),
        wire=min(1.0, max(1 / one.slope / rates[place] for place, one in messages.items())),
        core_seconds=min(
            one.slope * min(machines.shares[first[0]], machines.shares[place]) for place, one in messages.items()
        ),
    )
    ring = _line(ranks, first, brakes, all_reduce_seconds)
    slowest = min(found.bandwidth(node.megabits, node.share) for node in machines.nodes)
    reached = 2 * (len(first) - 1) / len(first) / ring.slope
    return replace(
        found,
        collective_share=min(MOST_COLLECTIVE_SHARE, reached / slowest),
        setup=max(0.0, ring.intercept - 2 * (len(first) - 1) * found.latency),
    )


def _line(
    ranks: Ranks, devices: list[int], brakes: dict[int, tuple[Path, float]], task: Callable[[Brakes], Points]
) -> FittedLine:
    own = [brakes[device] for device in devices]
    return fitted_line(ranks.run(devices, task, own, timeout=MEASURING_SECONDS)[0])


def _narrowest(machines: Machines, first: int, second: int) -> float:
    """Bytes/second of the slower of two devices' links."""
    nodes = (machines.nodes[machines.node_of[device]] for device in (first, second))
    return min(node.megabits for node in nodes) * MEGABIT


def _slowed(device: Device, share: float) -> Device:
    """A process with `share` of a core."""
    return replace(
        device,
        name=f"{share:g} of a core",
        rates=tuple((dtype, rate * share) for dtype, rate in device.rates),
        memory_bandwidth=device.memory_bandwidth * share,
        launch_seconds=device.launch_seconds / share,
    )
