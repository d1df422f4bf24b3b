"""What devices ask of the way of the data: samples a second of each, alike nodes taken together.

Devices that compute the first stage read samples: each those rows that its replica computes. Devices of one replica
read the same rows, each by itself; along the axes `rows` and `expert` each has rows of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction

from placer.cluster.cluster import Cluster, Node
from placer.errors import UsageError
from placer.plans.plan import Plan, Stage, replica_rows


def exact(value: float) -> Fraction:
    """The number that was written, 0.004 as 1/250: a sum of such is no hair above a whole."""
    return Fraction(repr(float(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDemand:
    """`count` nodes alike, each with `reading` devices that ask for `rate` samples a second together.

    spare_bytes: memory that is free on the fullest of those devices; 0: not known.
    """

    node: Node
    count: int
    reading: int
    rate: Fraction
    spare_bytes: int = 0


def uniform_demand(cluster: Cluster, rate: float) -> tuple[NodeDemand, ...]:
    """Every device of the cluster reads `rate` samples a second. Raises UsageError for a rate that is not above 0."""
    if not 0 < rate < float("inf"):
        raise UsageError(f"{rate} rows a second are asked of each device; give a number above 0")
    return tuple(
        NodeDemand(node=node, count=count, reading=node.size, rate=exact(rate) * node.size)
        for node, count in cluster.groups
    )


def plan_demand(plan: Plan) -> tuple[NodeDemand, ...]:
    """What the plan's devices read while none of them waits. Raises UsageError for a plan without a prediction."""
    if plan.ledger is None:
        raise UsageError("the plan has no prediction, so nothing says how many rows a second it reads; plan again")
    rates = device_rates(plan)
    spare = _spare(plan)
    alike: Counter[tuple[Node, int, Fraction, int]] = Counter()
    for number, devices in sorted(_by_node(plan.cluster, rates).items()):
        node = plan.cluster.nodes[number]
        key = (node, len(devices), sum((rates[one] for one in devices), Fraction()), min(spare[one] for one in devices))
        alike[key] += 1
    return tuple(
        NodeDemand(node=node, count=count, reading=reading, rate=rate, spare_bytes=free)
        for (node, reading, rate, free), count in alike.items()
    )


def device_rates(plan: Plan) -> dict[int, Fraction]:
    """Samples a second of each device that reads some, by its number."""
    assert plan.ledger is not None
    step = exact(plan.ledger.step_seconds)
    found: dict[int, Fraction] = {}
    for stage in (stage for stage in plan.stages if stage.first == 0):
        rows = replica_rows(plan.rows, stage.shares, stage.replicas)
        for i, device in enumerate(stage.devices):
            found[device] = Fraction(rows[i // stage.degree], _apart(plan, stage)) / step
    return {device: rate for device, rate in found.items() if rate}


def _apart(plan: Plan, stage: Stage) -> int:
    return 1 if stage.layout is None else plan.layouts[stage.layout].apart


def _by_node(cluster: Cluster, rates: dict[int, Fraction]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for device in rates:
        found[cluster.node_of[device]].append(device)
    return found


def _spare(plan: Plan) -> dict[int, int]:
    """Bytes that each device's memory has left."""
    assert plan.ledger is not None
    devices = plan.cluster.devices
    return {
        device: max(0, devices[device].memory_bytes - held.total)
        for mesh, held in zip(plan.meshes, plan.ledger.memory, strict=True)
        for device in mesh.devices
    }
