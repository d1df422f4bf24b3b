"""The model's blocks as a graph coloured by stage, and as a list in which each block unfolds to its ops.

A block stands to the right of all that it reads. Runs of alike blocks of one stage are one entry of the list; their ops
are written into the page once.
"""

from __future__ import annotations

from itertools import groupby

from placer.graph import Affine, BlockClass, Op, Tensor
from placer.plans.plan import Plan, Stage
from placer.report.page.charts import Chart, Section, bare, chart, label, stage_color
from placer.report.page.markup import Markup, counted, heading, paragraph, swatch, table, text
from placer.report.plan_table import ranges_text
from placer.report.printing import bytes_text, flops_text

# What a browser draws and scrolls at once without being slow; the rest is said to be left out.
MOST_BLOCKS = 3_000
MOST_ENTRIES = 500
MOST_OPS = 400
LABELLED = 24
# So that few blocks do not fill the page.
FEWEST_ACROSS = 12


def model_section(plan: Plan) -> Section:
    """The graph, then the list."""
    told = f"{counted(len(plan.graph.blocks), 'block')} in {counted(len(plan.stages), 'stage')}."
    if len(plan.graph.blocks) > MOST_BLOCKS:
        told += f" The first {MOST_BLOCKS} are drawn."
    return Section(
        "The model",
        (paragraph(told), heading("Blocks after what they read, coloured by stage"), _drawn(plan), _listed(plan)),
    )


def stage_of_blocks(plan: Plan) -> tuple[int, ...]:
    """The number of the stage that each block is in."""
    return tuple(number for number, stage in enumerate(plan.stages) for _ in range(stage.first, stage.last))


def _drawn(plan: Plan) -> Chart:
    blocks, stages = plan.graph.blocks[:MOST_BLOCKS], stage_of_blocks(plan)
    places = _places(plan, len(blocks))
    lanes = 1 + max(lane for _, lane in places)
    wide = max(FEWEST_ACROSS, 1 + max(across for across, _ in places))
    drawn = chart(
        across="", up="", height=90 + 32 * min(lanes, 16), left_right=(-0.7, wide - 0.3), bottom_top=(-lanes, 0.6),
        tooltips=[("block", "@name"), ("stage", "@stage"), ("devices", "@devices"), ("forward", "@flops")],
    )  # fmt: skip
    bare(drawn)
    edges = [(making, reading) for _, making, reading in plan.graph.reads if making < len(blocks) > reading]
    drawn.multi_line(
        xs=[[places[a][0], places[b][0]] for a, b in edges], ys=[[-places[a][1], -places[b][1]] for a, b in edges],
        color="#8a8f98", line_alpha=0.6,
    )  # fmt: skip
    rows = max(plan.microbatches)
    drawn.rect(
        "x", "y", width=0.85, height=0.7, fill_color="color", line_color=None,
        source={
            "x": [across for across, _ in places], "y": [-lane for _, lane in places],
            "color": [stage_color(stages[at]) for at in range(len(blocks))],
            "name": [label(block.name or "model", 80) for block in blocks],
            "stage": [stages[at] for at in range(len(blocks))],
            "devices": [label(_devices(plan, plan.stages[stages[at]])) for at in range(len(blocks))],
            "flops": [flops_text(plan.graph.class_flops[block.kind].at(rows)) for block in blocks],
        },
    )  # fmt: skip
    if len(blocks) <= LABELLED:
        drawn.text(
            [across for across, _ in places], [-lane - 0.4 for _, lane in places],
            text=[label(block.name or "model", 12) for block in blocks], text_align="center", text_baseline="top",
            text_font_size="10px", text_color="#808080",
        )  # fmt: skip
    return drawn


def _places(plan: Plan, count: int) -> list[tuple[int, int]]:
    """Of each block how many blocks come before it on the longest way, and a lane of its own among those as far."""
    depth = [0] * count
    for _, making, reading in plan.graph.reads:  # ordered by the block that reads, which comes after what it reads
        if reading < count:
            depth[reading] = max(depth[reading], depth[making] + 1)
    used: dict[int, int] = {}
    found = []
    for own in depth:
        found.append((own, used.get(own, 0)))
        used[own] = used.get(own, 0) + 1
    return found


def _devices(plan: Plan, stage: Stage) -> str:
    names = {plan.cluster.devices[device].name for device in stage.devices}
    return f"{ranges_text(stage.devices)} ({', '.join(sorted(names))})"


def _listed(plan: Plan) -> Markup:
    """An entry for each run of alike blocks, and once each the ops of a class as a stage cuts it."""
    blocks, stages = plan.graph.blocks, stage_of_blocks(plan)
    entries, kept = [], dict[str, Markup]()
    for (kind, number), run in groupby(range(len(blocks)), key=lambda at: (blocks[at].kind, stages[at])):
        alike, stage = list(run), plan.stages[number]
        key = f"ops-{kind}-{'whole' if stage.layout is None else stage.layout}"
        if key not in kept:
            kept[key] = f'<template id="{key}">{_ops(plan, kind, stage)}</template>'
        first, last = blocks[alike[0]].name or "model", blocks[alike[-1]].name
        name = first if len(alike) == 1 else f"{first} .. {last} ({len(alike)} alike)"
        held = sum(one.bytes for one in plan.graph.classes[kind].parameters if not one.buffer)
        about = (
            f"stage {number}, {counted(len(plan.graph.classes[kind].ops), 'op')}, {bytes_text(held)} of parameters each"
        )
        entries.append(
            f'<details data-ops="{key}"><summary>{swatch(stage_color(number))}{text(name)} '
            f'<span class="note">{text(about)}</span></summary></details>'
        )
    more = len(entries) - MOST_ENTRIES
    left_out = paragraph(f"{more} more are left out.") if more > 0 else ""
    return "".join(entries[:MOST_ENTRIES]) + left_out + "".join(kept.values())


def _ops(plan: Plan, kind: int, stage: Stage) -> Markup:
    block_class: BlockClass = plan.graph.classes[kind]
    split = None if stage.layout is None else plan.layouts[stage.layout].splits[kind]
    choices = split.choices if split else ("whole",) * len(block_class.ops)
    rows = max(plan.microbatches)
    lines = [
        (op.name, op.target, choice, _shape(op, rows), _amount(op.forward_flops, rows), op.source)
        for op, choice in zip(block_class.ops[:MOST_OPS], choices, strict=False)
    ]
    more = len(block_class.ops) - MOST_OPS
    headers = ("op", "operator", "split", "result", "forward", "line")
    return table(headers, lines, left=4) + (paragraph(f"{more} more ops are left out.") if more > 0 else "")


def _shape(op: Op, rows: int) -> str:
    """`4 x 128 x 768 float32` of a microbatch before it is divided over replicas."""
    first: tuple[Tensor, ...] = op.outputs[:1]
    return "".join(f"{' x '.join(map(str, one.shape_at(rows)))} {one.dtype}" for one in first)


def _amount(flops: Affine, rows: int) -> str:
    return flops_text(flops.at(rows)) if any(flops) else ""
