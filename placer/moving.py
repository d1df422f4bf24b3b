"""What it takes to bring a checkpoint into a plan: bytes that each device and node reads, and how long that lasts.

    state of a device   parameters and optimizer state, by category of the predicted ledger
    seconds             the node that reads most: latency + bytes / read bandwidth of its storage

Where a node's storage is not described the seconds are not known (None). Nodes read beside each other; a storage that
several nodes share is as slow as it is described for one of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from placer.plans import Plan
from placer.program import position_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """bytes: read by all devices together; fullest: by the node that reads most; seconds: until the last has read."""

    bytes: int
    fullest: int
    seconds: float | None


def state_moved(plan: Plan) -> Moving:
    """What loading the state of a plan takes; nothing is known of a plan without a prediction."""
    if plan.ledger is None:
        return Moving(bytes=0, fullest=0, seconds=None)
    held = [memory.parameters + memory.optimizer for memory in plan.ledger.memory]
    size_of = {
        device: held[position]
        for stage, position in zip(plan.stages, position_of(plan), strict=True)
        for device in stage.devices
    }
    per_node: Counter[int] = Counter()
    for device, size in size_of.items():
        per_node[plan.cluster.node_of[device]] += size
    return Moving(
        bytes=sum(size_of.values()), fullest=max(per_node.values(), default=0), seconds=_seconds(plan, per_node)
    )


def _seconds(plan: Plan, per_node: Counter[int]) -> float | None:
    longest = 0.0
    for node, size in per_node.items():
        storage = plan.cluster.node_list[node].storage
        if storage is None:
            return None
        longest = max(longest, storage.latency_seconds + size / storage.read_bandwidth)
    return longest
