"""A plan beside the one it takes the place of: what changes, and what moving the state takes.

What it takes to bring a checkpoint into a plan: bytes that each device and node reads, and how long that lasts.

    state of a device   parameters and optimizer state, by category of the predicted ledger
    seconds             the node that reads most: latency + bytes / read bandwidth of its storage

Where a node's storage is not described the seconds are not known (None). Nodes read beside each other; a storage that
several nodes share is as slow as it is described for one of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.report.documents import Document, plan_document
from placer.report.plan_table import STATE, ranges_text, rows_text
from placer.report.printing import bytes_text, seconds_text, table, titled


def replan_view(old: Plan, new: Plan, moving: Moving) -> RenderableType:
    """Both plans side by side, what is different first said in a line."""
    changed = [name for name, before, after in _rows(old, new) if before != after]
    line = f"what changes: {', '.join(changed)}" if changed else "nothing changes"
    return Group(Text(line, style="bold"), titled("the plan before and after", _table(old, new)), Text(_moved(moving)))


def replan_document(old: Plan, new: Plan, moving: Moving) -> Document:
    """The same for machines."""
    return {
        "before": plan_document(old),
        "after": plan_document(new),
        "changes": [name for name, before, after in _rows(old, new) if before != after],
        "state_bytes": moving.bytes,
        "fullest_node_bytes": moving.fullest,
        "moving_seconds": moving.seconds,
    }


def _table(old: Plan, new: Plan) -> Table:
    view = table("", "before", "after", left=3)
    for row in _rows(old, new):
        view.add_row(*row)
    return view


def _rows(old: Plan, new: Plan) -> list[tuple[str, str, str]]:
    """(what, before, after)."""
    count = max(len(old.stages), len(new.stages))
    names = ["cluster", "devices used", "microbatches", "schedule", *(f"stage {index}" for index in range(count))]
    names += ["predicted step", "fullest device"]
    return list(zip(names, _cells(old, count), _cells(new, count), strict=True))


def _cells(plan: Plan, stages: int) -> list[str]:
    cluster = f"{plan.cluster.name}, {plan.cluster.size} devices"
    cells = [cluster, str(plan.world_size), rows_text(plan.microbatches), plan.schedule]
    ledger = plan.ledger
    told = [seconds_text(ledger.step_seconds), bytes_text(ledger.peak_memory)] if ledger else ["-", "-"]
    return [*cells, *(_stage(plan, index) for index in range(stages)), *told]


def _stage(plan: Plan, index: int) -> str:
    if index >= len(plan.stages):
        return "-"
    stage = plan.stages[index]
    words = [
        f"blocks {stage.first}-{stage.last - 1} on {ranges_text(stage.devices)}",
        f"{stage.replicas} replica{'s' if stage.replicas > 1 else ''}",
    ]
    words += [] if stage.layout is None else [plan.layouts[stage.layout].shape]
    words += [] if stage.sharding == "none" else [STATE[stage.sharding]]
    again = {False: [], True: ["recompute"], "selective": ["selective recompute"]}[stage.recompute]
    again += [] if stage.recomputed is None else [f"of its first {stage.recomputed} blocks"]
    return ", ".join([*words, *again])


def _moved(moving: Moving) -> str:
    text = f"state to load: {bytes_text(moving.bytes)} by all devices, {bytes_text(moving.fullest)} by the fullest node"
    if moving.seconds is None:
        return f"{text}; the cluster does not say how fast its storage reads"
    return f"{text}, about {seconds_text(moving.seconds)}"


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
        storage = plan.cluster.nodes[node].storage
        if storage is None:
            return None
        longest = max(longest, storage.latency_seconds + size / (storage.disks * storage.read_bandwidth))
    return longest
