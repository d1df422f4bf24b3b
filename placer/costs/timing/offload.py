"""The optimizer's state in the memory of the host, which updates (settings.offload): seconds and bytes.

    seconds   latency + gradients over a device's link, and as many weights back; beside them the host reads and writes
              gradient, weight and each state once, at its share of the memory's bandwidth
    bytes     on the host: states and a copy of the weights at float32 (float64 at float64), and the gradients that came

Where devices are processes of a CPU, their memory is the host's: nothing moves.
"""

from __future__ import annotations

from placer.cluster.cluster import Cluster, Node
from placer.costs.precision import Numerics
from placer.errors import UsageError
from placer.plans.settings import RunSettings, state_count


def heeds(settings: RunSettings, cluster: Cluster) -> bool:
    """Whether `cluster` does as the settings say: not where devices have all state on their host anyway.

    Raises UsageError where it says nothing of a host that is needed.
    """
    if settings.offload == "none":
        return True
    if all(device.backend == "cpu" for node, _ in cluster.groups for device, _ in node.devices):
        return False
    unknown = [node.name for node, _ in cluster.groups if node.host is None]
    if unknown:
        raise UsageError(
            f"offload=optimizer needs the host of node {unknown[0]}, of which cluster {cluster.name} says nothing; add "
            "to the node in a cluster file, as in host: {link: pcie5, memory_bandwidth: 600 GB/s}"
        )
    return True


def offloaded_seconds(elements: float, numerics: Numerics, settings: RunSettings, node: Node) -> float:
    """Seconds of moving and updating so many elements of each device of `node`."""
    if node.host is None or not elements:
        return 0.0
    link, weight = node.host.link, numerics.weight_bytes
    moved = link.latency_seconds + elements * weight / (link.bandwidth * link.share * link.ports)
    passes = weight + kept_bytes(numerics) * (2 * state_count(settings) + 2)
    return 2 * moved + elements * passes * node.size / node.host.memory_bandwidth


def host_bytes(numerics: Numerics, settings: RunSettings) -> int:
    """Bytes on the host per element that is updated there."""
    return kept_bytes(numerics) * (state_count(settings) + 1) + numerics.weight_bytes


def kept_bytes(numerics: Numerics) -> int:
    """Bytes per element of each state."""
    return 8 if numerics.weights == "float64" else 4
