"""Ops by what they compute per byte and the rate predicted for them, under the roofs of their devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.cluster.cluster import Device
from placer.costs.compute.roofline import memory_rate, op_seconds
from placer.costs.costs import Costs
from placer.costs.step_estimate import costs_of
from placer.plans.plan import Plan, Stage, replica_rows
from placer.report.page.charts import Section, chart, label, legend
from placer.report.page.markup import folded, paragraph, table
from placer.report.printing import flops_text, seconds_text

# The ops that take longest; the others are said to be left out.
MOST_POINTS = 300
LISTED = 25
TERA = 1e12
FAMILY_COLORS = ("#2f6690", "#d9672b", "#5fa777", "#b07aa1", "#f2a541", "#79706e", "#4e9bd1", "#9a9a9a")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPoint:
    """An op of all blocks of a class on a device: `seconds` of one forward, `count` how many there are in a step."""

    target: str
    kind: str
    block: str
    device: str
    flops: int
    bytes: float
    seconds: float
    count: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return self.flops / self.seconds


def roofline_section(plan: Plan) -> Section:
    """Points and roofs."""
    costs = costs_of(plan)
    points = sorted(_points(costs, plan), key=lambda one: -one.seconds * one.count)
    shown = points[:MOST_POINTS]
    told = f"Forward of {len(points)} kinds of ops that compute and move something"
    if len(shown) < len(points):
        told += f"; the {len(shown)} that take longest are drawn"
    drawn = chart(
        across="FLOPs per byte", up="TFLOP/s", log=True, height=420,
        tooltips=[("operator", "@target"), ("in", "@block"), ("forward", "@told")],
    )  # fmt: skip
    if not shown:
        return Section("Roofline of the ops", (paragraph("No op of this model computes anything that is counted."),))
    low, high = min(one.intensity for one in shown) / 2, max(one.intensity for one in shown) * 2
    for device in _devices(plan):
        peak, moved = costs.numerics.peak(costs.graph, device), memory_rate(device)
        ridge = peak / moved
        at = [low, ridge, max(high, 2 * ridge)] if low < ridge else [low, high]
        drawn.line(at, [min(peak, one * moved) / TERA for one in at], line_dash="dashed", line_width=2, color="#c33")
    kinds = dict.fromkeys(one.kind for one in shown)
    colors = {kind: FAMILY_COLORS[number % len(FAMILY_COLORS)] for number, kind in enumerate(kinds)}
    for kind in kinds:
        own = [one for one in shown if one.kind == kind]
        drawn.scatter(
            "x", "y", size=9, fill_alpha=0.7, color=colors[kind],
            source={
                "x": [one.intensity for one in own], "y": [one.rate / TERA for one in own],
                "target": [label(one.target) for one in own], "block": [label(one.block, 60) for one in own],
                "told": [f"{seconds_text(one.seconds)} x {one.count} on {label(one.device)}" for one in own],
            },
        )  # fmt: skip
    rows = [
        (one.target, one.block, one.device, flops_text(one.flops), f"{one.intensity:.3g}", seconds_text(one.seconds),
         str(one.count), seconds_text(one.seconds * one.count))
        for one in shown[:LISTED]
    ]  # fmt: skip
    headers = ("operator", "in", "device", "FLOPs", "FLOPs per byte", "forward", "times a step", "in all")
    return Section("Roofline of the ops", (
        paragraph(f"{told}. The dashed roofs are the peak rate and the achieved memory bandwidth of each device."),
        legend(colors),
        drawn,
        folded(f"The {len(rows)} that take longest", table(headers, rows, left=3)),
    ))  # fmt: skip


def _devices(plan: Plan) -> tuple[Device, ...]:
    """The kinds of devices the plan uses."""
    return tuple(dict.fromkeys(plan.cluster.devices[device] for device in plan.ranks))


def _points(costs: Costs, plan: Plan) -> Iterator[OpPoint]:
    """A point for each kind of op of each class of blocks, as its stages cut it, on each kind of device."""
    counts: dict[tuple[int, int | None, int], list[tuple[Stage, int]]] = {}
    for stage in plan.stages:
        for at in range(stage.first, stage.last):
            for device in dict.fromkeys(costs.chips[one] for one in stage.devices):
                counts.setdefault((plan.graph.blocks[at].kind, stage.layout, device), []).append((stage, at))
    for (kind, _, device), found in counts.items():
        stage, at = found[0]
        yield from _class_points(costs.of_stage(plan, stage), plan, kind, stage, device, at, len(found))


def _class_points(
    costs: Costs, plan: Plan, kind: int, stage: Stage, device: int, at: int, blocks: int
) -> Iterator[OpPoint]:
    chip, chips = plan.cluster.devices[device], costs.chips
    replica = next(i for i, one in enumerate(stage.devices) if chips[one] == device) // stage.degree
    rows = replica_rows(max(plan.microbatches), stage.shares, stage.replicas)[replica]
    for op, numbers, count in costs.numerics.alike(costs.graph.classes[kind]):
        moved = numbers.read * op.read_bytes.at(rows) + numbers.written * op.written_bytes.at(rows)
        seconds, flops = op_seconds(op, numbers, chip, plan.settings, rows).forward, op.forward_flops.at(rows)
        if seconds > 0 and flops > 0 and moved > 0:
            yield OpPoint(
                target=op.target, kind=op.kind, block=plan.graph.blocks[at].name or "model", device=chip.name,
                flops=flops, bytes=moved, seconds=seconds, count=count * blocks * len(plan.microbatches),
            )  # fmt: skip
