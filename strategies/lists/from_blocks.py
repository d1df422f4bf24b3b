"""A captured model's blocks over the positions of an outline as tasks on devices.

seconds    forward and backward of a full microbatch, at each position
edge       two messages, the values on and their gradients back
memory     what a position's smallest device has; a block's state and what it keeps of so many microbatches
"""

from __future__ import annotations

import math
from dataclasses import replace

from placer.costs.communication.network import LinkCost
from placer.costs.costs import Costs
from placer.strategies.lists.task_graph import Edge, TaskGraph
from placer.strategies.space.block_costs import BlockSeconds, block_bytes, block_edges, block_seconds
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline
from placer.strategies.space.placements import Placing

# Bytes by which a link's seconds per byte are told from its latency.
MANY = float(2**30)


def block_tasks(placing: Placing, kept: int) -> TaskGraph:
    """The blocks within the memory of the positions, each keeping `kept` microbatches."""
    outline, costs = placing.outline, placing.problem.costs.under(placing.layout)
    tasks = unbounded_tasks(costs, outline, placing.blocks, block_seconds(costs, outline))
    chips = [[costs.cluster.devices[d] for d in outline.devices(p)] for p in range(outline.positions)]
    return replace(
        tasks,
        names=tuple(f"block {block.name}" for block in placing.problem.graph.blocks),
        size=tuple(
            float(block_bytes(costs, outline, block, recompute=placing.recompute, kept=kept))
            for block in range(tasks.count)
        ),
        memory=tuple(float(min(chip.memory_bytes - chip.overhead_bytes for chip in own)) for own in chips),
    )


def unbounded_tasks(costs: Costs, outline: Outline, blocks: BlockGraph, seconds: BlockSeconds) -> TaskGraph:
    """The blocks where memory has no limit; `costs` are those under the outline's layout."""
    positions = range(outline.positions)
    sizes = block_edges(costs, outline, blocks)
    return TaskGraph(
        names=tuple(f"block {block}" for block in range(blocks.size)),
        seconds=seconds,
        size=(0.0,) * blocks.size,
        group=tuple(range(blocks.size)),
        edges=tuple(
            Edge(source=maker, target=reader, messages=2, size=size) for (maker, reader), size in sizes.items()
        ),
        memory=(math.inf,) * outline.positions,
        links=tuple(tuple(_link(costs, outline, a, b) for b in positions) for a in positions),
    )


def _link(costs: Costs, outline: Outline, source: int, target: int) -> LinkCost:
    if source == target:
        return LinkCost(0.0, 0.0)
    empty, full = (
        costs.network.transfer(outline.devices(source), outline.devices(target), sent=sent, returned=None).forward
        for sent in (0.0, MANY)
    )
    return LinkCost(empty, (full - empty) / MANY)
