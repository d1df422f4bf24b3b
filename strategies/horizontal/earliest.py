"""First placements: each block where it is finished first (HEFT, Topcuoglu et al., IEEE TPDS 13(3), 2002), and ranges.

The seconds of a block are those of its forward and backward for one microbatch by itself, those of an edge what its
values take on and back; blocks are taken in the order of the longest way to the end, and go behind what their position
does already. Devices of which two blocks of a run stand on different ones hardly ever finish one microbatch sooner, but
many microbatches: `in_ranges` cuts the model's own order into ranges of equal seconds.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TypeAlias

from placer.costs.costs import Costs
from placer.plans.plan import replica_rows
from placer.strategies.horizontal.placements import Placement
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


def finished_first(costs: Costs, outline: Outline, blocks: BlockGraph, seconds: BlockSeconds) -> Placement:
    """Each block at the position where it ends first."""
    sent = _edges(costs, outline, blocks)
    mean = [sum(own) / len(own) for own in seconds]
    left = list(mean)
    for block in reversed(range(blocks.size)):
        for reader in blocks.readers[block]:
            left[block] = max(left[block], mean[block] + sent[block, reader] + left[reader])
    free = [0.0] * outline.positions
    end: dict[int, float] = {}
    place: dict[int, int] = {}
    for block in sorted(range(blocks.size), key=lambda b: (-left[b], b)):

        def ends(position: int, block: int = block) -> float:
            ready = (
                end[maker] + (sent[maker, block] if place[maker] != position else 0.0)
                for maker, _ in blocks.reads[block]
            )
            return max([free[position], *ready]) + seconds[block][position]

        chosen = min(range(outline.positions), key=lambda position: (ends(position), position))
        end[block] = free[chosen] = ends(chosen)
        place[block] = chosen
    return tuple(place[block] for block in range(blocks.size))


def in_ranges(outline: Outline, seconds: BlockSeconds) -> Placement:
    """As many ranges of the model's order as positions, of equal seconds as nearly as blocks allow."""
    ends = list(accumulate(min(own) for own in seconds))
    middle = [end - min(own) / 2 for end, own in zip(ends, seconds, strict=True)]
    return tuple(min(outline.positions - 1, int(outline.positions * at / ends[-1])) for at in middle)


def _edges(costs: Costs, outline: Outline, blocks: BlockGraph) -> dict[tuple[int, int], float]:
    """Seconds of the values of each edge from the first position to the second, on and back."""
    most = max(replica_rows(outline.microbatch, outline.shares, outline.replicas))
    crossing, found = costs.ranges.crossing, dict[tuple[int, int], float]()
    for block, before in enumerate(blocks.reads):
        for maker, values in before:
            seconds = costs.network.transfer(
                outline.devices(0), outline.devices(1), sent=crossing.bytes_of(values).at(most),
                returned=crossing.returned(values).at(most),
            )  # fmt: skip
            found[maker, block] = seconds.forward + seconds.backward
    return found
