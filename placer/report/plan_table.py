"""The plan table: what goes where, seconds, bytes, MFU, gap, what was assumed, and why the runners-up lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from placer.costs.step_estimate import costs_of, tightest
from placer.legality import but_memory, check
from placer.plans.compression import compression_text
from placer.plans.ledger import Ledger, MemoryBytes, Seconds
from placer.plans.plan import Plan, Stage, recompute_word, replica_rows
from placer.report.experts import expert_placement, experts_text
from placer.report.mixed_allreduce import stages_text
from placer.report.ops import unknown_ops
from placer.report.printing import bytes_text, flops_text, plain, seconds_text, share_text, table, titled

# What of a stage's state is divided over its replicas.
STATE = {"none": "whole", "optimizer": "optimizer sharded", "gradients": "gradients sharded", "parameters": "sharded"}
# A smaller share of a step is what rounding leaves of a zero.
NOTHING = 1e-9


def plan_table(plan: Plan) -> str:
    """The whole view as plain text; of a plan that breaks rules the rules, and no seconds or bytes to believe."""
    broken = but_memory(check(plan, lowered=False))
    if not broken:
        return plain(plan_view(plan))
    said = [Text(f"breaks a rule: {rule}") for rule in broken]
    return plain(Group(plan_view(replace(plan, ledger=None, bound=None, alternatives=())), *said))


def plan_view(plan: Plan) -> RenderableType:
    """What `print(plan)` and `placer explain` show."""
    parts: list[RenderableType] = [
        Text(headline(plan), style="bold"),
        Text(figures(plan)),
        titled("stages", _stages(plan)),
    ]
    placement = expert_placement(plan)
    if placement:
        parts.append(Text(experts_text(placement)))
    if plan.ledger:
        parts += [*map(Text, stages_text(plan)), seconds_view(plan.ledger), memory_view(plan, plan.ledger)]
    if plan.alternatives:
        parts += [titled("runners-up", _alternatives(plan))]
    parts += [Text(f"assumed: {line}") for line in plan.assumptions]
    parts += [Text(f"note: {line}") for line in unknown_ops(plan.graph)]
    parts += doubts(plan)
    return Group(*parts)


def doubts(plan: Plan) -> list[RenderableType]:
    """A line per reason to doubt the seconds predicted for the plan's cluster."""
    return [Text(f"note: {plan.cluster.name} was {line}") for line in plan.cluster.doubts]


def headline(plan: Plan) -> str:
    """One line: the model, the machines, who made the plan."""
    return (
        f"{plan.graph.name} on {plan.cluster.name} ({plan.world_size} of {plan.cluster.size} devices), "
        f"by strategy {plan.strategy or 'none'}"
    )


def figures(plan: Plan) -> str:
    """The step in one paragraph."""
    lines = [f"{plan.rows} rows as {rows_text(plan.microbatches)}, schedule {plan.schedule}, {plan.settings.precision}"]
    if plan.fuses:
        when = "beside the last backward" if plan.reduces_beside else "after the last backward"
        lines.append(f"gradients fused into buckets of {bytes_text(plan.bucket_bytes)}, summed {when}")
    if plan.settings.gradient_compression != "none":
        lines.append(_compression(plan))
    ledger = plan.ledger
    if ledger is None:
        return "\n".join(lines)
    lines.append(
        f"predicted step {seconds_text(ledger.step_seconds)}, {ledger.rows_per_second:.3g} rows/s, "
        f"{flops_text(ledger.flops)}, MFU {share_text(ledger.mfu)}, fullest device {bytes_text(ledger.peak_memory)}"
    )
    if plan.bound is None or plan.gap is None:
        lines.append("no lower bound is known for this plan")
    else:
        lines.append(f"no plan searched takes less than {seconds_text(plan.bound)} (gap {share_text(plan.gap)})")
    return "\n".join(lines)


def _compression(plan: Plan) -> str:
    if plan.compresses:
        return compression_text(plan.settings.gradient_compression)
    return f"nothing to cast to {plan.settings.gradient_compression} (gradient_compression): no stage has replicas"


def rows_text(microbatches: tuple[int, ...]) -> str:
    """`4 microbatches of 8 rows`, `3 x 8 + 1 x 2 rows`."""
    counts = Counter(microbatches)
    if len(counts) == 1:
        (rows, count), *_ = counts.items()
        return f"{count} microbatch{'es' if count > 1 else ''} of {rows} row{'s' if rows > 1 else ''}"
    return "microbatches of " + " + ".join(f"{count} x {rows}" for rows, count in counts.items()) + " rows"


def ranges_text(numbers: tuple[int, ...]) -> str:
    """`0-3, 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1:] = [number] if len(runs[-1]) > 1 else [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(str(end) for end in run) for run in runs)


def _stages(plan: Plan) -> Table:
    headers, rows = stage_rows(plan)
    view = table(*headers, left=3)
    for row in rows:
        view.add_row(*row)
    return view


def stage_rows(plan: Plan) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table of stages: its headers and a row for each stage, the first three of which are words."""
    # Whether replicas, of one stage or of two, have different numbers of rows.
    uneven = any(stage.shares for stage in plan.stages) or len({stage.replicas for stage in plan.stages}) > 1
    headers = ("stage", "blocks", "devices", "replicas", *["rows"] * uneven, "split", "state", "recompute")
    rows = [
        (
            str(index),
            _blocks(plan, stage),
            _devices(plan, stage),
            str(stage.replicas),
            *[_rows(plan, stage)] * uneven,
            _split(plan, stage),
            STATE[stage.sharding] + ", optimizer on the host" * (plan.settings.offload == "optimizer"),
            recompute_word(stage.again),
        )
        for index, stage in enumerate(plan.stages)
    ]
    return headers, rows


def _split(plan: Plan, stage: Stage) -> str:
    if stage.layout is None:
        return "-"
    return plan.layouts[stage.layout].shape if stage.layout < len(plan.layouts) else "no such layout"


def _rows(plan: Plan, stage: Stage) -> str:
    """The rows of each replica of the largest microbatch: `2 x 6`, `9 + 3`."""
    each = replica_rows(max(plan.microbatches, default=0), stage.shares, stage.replicas)
    counts = Counter(each)
    return " + ".join(str(rows) if count == 1 else f"{count} x {rows}" for rows, count in counts.items())


def _blocks(plan: Plan, stage: Stage) -> str:
    names = [block.name or "model" for block in plan.graph.blocks[stage.first : stage.last]] or ["no such block"]
    span = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
    return f"{stage.first}-{stage.last - 1}: {span}" if len(names) > 1 else f"{stage.first}: {span}"


def _devices(plan: Plan, stage: Stage) -> str:
    chips = plan.cluster.devices
    kinds = Counter(chips[device].name if device < len(chips) else "no such device" for device in stage.devices)
    return f"{ranges_text(stage.devices)} ({', '.join(kinds)})"


def seconds_view(ledger: Ledger) -> RenderableType:
    """A ledger's seconds by cause."""
    view = table("cause", "seconds", "share")
    for name, value in seconds_items(ledger.seconds):
        if value > NOTHING * ledger.step_seconds:
            view.add_row(name, seconds_text(value), share_text(value / ledger.step_seconds))
    return titled("seconds of a step on its slowest rank", view)


def seconds_items(seconds: Seconds) -> list[tuple[str, float]]:
    """(cause, seconds) in order."""
    return [(field.name, getattr(seconds, field.name)) for field in fields(seconds)]


def memory_items(memory: MemoryBytes) -> list[tuple[str, int]]:
    """(category, bytes) in order."""
    return list(memory.categories.items())


def memory_view(plan: Plan, ledger: Ledger) -> RenderableType:
    """Bytes of each pipeline position's device with least to spare by category, beside what the device has."""
    held = [dict(memory_items(memory)) for memory in ledger.memory]
    devices = [device for device, _ in tightest(costs_of(plan), plan)]
    names = [name for name, _ in memory_items(MemoryBytes()) if any(memory[name] for memory in held)]
    view = table("position", *names, "total", "of")
    for position, memory in enumerate(held):
        device = plan.cluster.devices[devices[position]]
        cells = [bytes_text(memory[name]) for name in names]
        view.add_row(str(position), *cells, bytes_text(ledger.memory[position].total), bytes_text(device.memory_bytes))
    return titled("bytes of a device, by pipeline position", view)


def _alternatives(plan: Plan) -> Table:
    view = table("plan", "step", "why it lost")
    view.columns[2].justify = "left"
    for other in plan.alternatives:
        step = "not legal" if other.step_seconds is None else seconds_text(other.step_seconds)
        view.add_row(other.name, step, other.reason)
    return view
