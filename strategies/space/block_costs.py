"""What the blocks of a model cost at the positions of an outline: seconds, bytes that stay, bytes that are sent."""

from __future__ import annotations

from typing import TypeAlias

from placer.costs.costs import Costs
from placer.costs.memory.peak import stage_state
from placer.plans.plan import Recompute, replica_rows
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline

#: Of each block its seconds at each position.
BlockSeconds: TypeAlias = tuple[tuple[float, ...], ...]


def block_seconds(costs: Costs, outline: Outline) -> BlockSeconds:
    """Forward and backward of a full microbatch; `costs` are those under the outline's layout."""
    rows = replica_rows(outline.microbatch, outline.shares, outline.replicas)
    leaders = [outline.devices(position)[:: outline.degree] for position in range(outline.positions)]

    def seconds(block: int, position: int) -> float:
        return max(
            own.forward + own.backward
            for device, share in dict.fromkeys(zip(leaders[position], rows, strict=True))
            for own in (costs.stage_times.stage(block, block + 1, device=device, rows=share),)
        )

    every = range(outline.positions)
    return tuple(tuple(seconds(block, p) for p in every) for block in range(len(costs.graph.blocks)))


def block_bytes(costs: Costs, outline: Outline, block: int, *, recompute: Recompute, kept: int) -> int:
    """A block's state, and what it keeps of `kept` full microbatches."""
    span, rows = costs.ranges.of(block, block + 1), most_rows(outline)
    state = stage_state(
        span, costs.numerics, costs.priced, sharding=outline.sharding, replicas=outline.replicas,
        accumulates=outline.count > 1,
    )  # fmt: skip
    return sum(state) + kept * span.kept(recompute).at(rows)


def block_edges(costs: Costs, outline: Outline, blocks: BlockGraph) -> dict[tuple[int, int], float]:
    """Bytes of each edge, (maker, reader): of a full microbatch's values on and of their gradients back."""
    rows, crossing = most_rows(outline), costs.ranges.crossing
    return {
        (maker, block): crossing.bytes_of(values).at(rows) + crossing.returned(values).at(rows)
        for block, before in enumerate(blocks.reads)
        for maker, values in before
    }


def most_rows(outline: Outline) -> int:
    """Rows of the replica that has most of a full microbatch."""
    return max(replica_rows(outline.microbatch, outline.shares, outline.replicas))
