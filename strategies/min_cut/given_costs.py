"""A captured model as a graph with given costs: what `placer place` reads from a file, made of a Problem.

node     a block: seconds of its forward and backward for one microbatch on the outline's slowest position, bytes of
         its state and of what it keeps of so many microbatches
send     seconds of its values on and of their gradients back, half of them at either end
device   a position of the outline, with the memory of its smallest device
"""

from __future__ import annotations

from placer.costs.costs import Costs
from placer.placement.problem import PlacementNode, PlacementProblem
from placer.plans.plan import Recompute
from placer.strategies.space.block_costs import block_bytes, block_seconds, most_rows
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline


def given_costs(
    costs: Costs, blocks: BlockGraph, outline: Outline, *, recompute: Recompute, kept: int
) -> PlacementProblem:
    """The blocks over the positions of an outline of two or more, whose layout `costs` are under; each block keeps
    `kept` microbatches."""
    seconds = block_seconds(costs, outline)
    chips = [costs.cluster.devices[device] for device in outline.used]
    nodes = tuple(
        PlacementNode(
            name=str(block),
            accelerator=max(seconds[block]),
            host=max(seconds[block]),
            size=block_bytes(costs, outline, block, recompute=recompute, kept=kept),
            send=_sent(costs, outline, blocks, block) / 2,
        )
        for block in range(blocks.size)
    )
    return PlacementProblem(
        nodes=nodes,
        edges=tuple((maker, block) for block, before in enumerate(blocks.reads) for maker, _ in before),
        accelerators=outline.positions,
        cpus=0,
        memory=float(min(chip.memory_bytes - chip.overhead_bytes for chip in chips)),
        unit="s",
    )


def _sent(costs: Costs, outline: Outline, blocks: BlockGraph, block: int) -> float:
    """Seconds of all values of a block that others read, on and back."""
    read = {maker: values for reader in blocks.readers[block] for maker, values in blocks.reads[reader]}
    values = read.get(block, ())
    if not values:
        return 0.0
    crossing, rows = costs.ranges.crossing, most_rows(outline)
    seconds = costs.network.transfer(
        outline.devices(0), outline.devices(1), sent=crossing.bytes_of(values).at(rows),
        returned=crossing.returned(values).at(rows),
    )  # fmt: skip
    return seconds.forward + seconds.backward
