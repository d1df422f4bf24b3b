"""First placements: each block where it is finished first, and ranges.

The seconds of a block are those of its forward and backward for one microbatch by itself, those of an edge what its
values take on and back; blocks are taken in the order of the longest way to the end, and go behind what their position
does already (`lists.ranked`). Devices of which two blocks of a run stand on different ones hardly ever finish one
microbatch sooner, but many microbatches: `in_ranges` cuts the model's own order into ranges of equal seconds.
"""

from __future__ import annotations

from itertools import accumulate

from placer.costs.costs import Costs
from placer.errors import Infeasible
from placer.strategies.lists.from_blocks import unbounded_tasks
from placer.strategies.lists.ranked import heft
from placer.strategies.space.block_costs import BlockSeconds
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline
from placer.strategies.space.placements import Placement


def finished_first(costs: Costs, outline: Outline, blocks: BlockGraph, seconds: BlockSeconds) -> Placement:
    """Each block at the position where it ends first, were memory without limit."""
    found = heft(unbounded_tasks(costs, outline, blocks, seconds), between=False)
    assert not isinstance(found, Infeasible)
    return found


def in_ranges(outline: Outline, seconds: BlockSeconds) -> Placement:
    """As many ranges of the model's order as positions, of equal seconds as nearly as blocks allow."""
    ends = list(accumulate(min(own) for own in seconds))
    middle = [end - min(own) / 2 for end, own in zip(ends, seconds, strict=True)]
    return tuple(min(outline.positions - 1, int(outline.positions * at / ends[-1])) for at in middle)
