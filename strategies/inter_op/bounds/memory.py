"""How many blocks of the commonest class each position of an outline has memory for.

    memory    position j holds at most n_j = capacity / (state + a_j kept) blocks, n'_j of them recomputed

with a_j microbatches in flight at position j at once, and the state of what no other block holds. A position of several
stages is filled turn by turn.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placer.costs.memory.in_flight import microbatches_in_flight
from placer.graph import Affine
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.equivalence import PositionClasses
from placer.strategies.space.outline import Outline, recomputes

# Bytes that nothing fills.
ENDLESS = 2**60


class BlockRoom(NamedTuple):
    """How many blocks of the commonest class each position holds: without and with recompute."""

    kept: NDArray[np.int64]
    again: NDArray[np.int64]


def room(bounds: OutlineBounds, outline: Outline, places: PositionClasses) -> BlockRoom:
    """Blocks of the commonest class that fit each position."""
    (block, count), spans = bounds.commonest, bounds.ranges.costs.ranges
    kind = bounds.problem.graph.blocks[block].kind
    state = bounds.alone_bytes(outline, block)
    found: NDArray[np.int64] | None = None
    allowed = recomputes(bounds.problem)
    for rows, rooms in _by_rows(places.loads(outline)):
        # Selective recompute keeps more: of those allowed, the one that keeps least counts for all.
        results = Affine() if True in allowed else spans.kept.results[kind]
        sizes = (spans.kept.saved[kind].at(rows), spans.kept.own_inputs(block).at(rows) + results.at(rows))
        held = _held(bounds, outline, rooms, state=state, sizes=sizes)
        found = held if found is None else np.minimum(found, held)
    assert found is not None
    kept, again = np.minimum(count, found.T)
    return BlockRoom(kept * (False in allowed), again * any(allowed))


def _held(
    bounds: OutlineBounds, outline: Outline, rooms: NDArray[np.int64], *, state: int, sizes: tuple[int, int]
) -> NDArray[np.int64]:
    """Blocks of so many bytes that each position holds in its room: none recomputed, and all of them."""
    counts = (outline.positions, outline.stages, outline.count)
    if outline.virtual == 1:
        peaks = [own.later for own in microbatches_in_flight(outline.schedule, *counts)]
        return np.array([_lone(int(room), state, sizes, own) for room, own in zip(rooms, peaks, strict=True)])
    least = np.array(_least_blocks(bounds, outline), dtype=np.int64).reshape(outline.virtual, -1).T
    most = outline.lengths(len(bounds.problem.graph.blocks)).stop - 1
    return _turns(rooms, state, sizes, _peaks(outline.schedule, *counts), least, most)


def _least_blocks(bounds: OutlineBounds, outline: Outline) -> list[int]:
    """How many blocks of the commonest class each stage of an even outline holds at least.

    A stage of q or q + 1 blocks lies between the shortest and the longest that can come before and after it.
    """
    blocks = bounds.problem.graph.blocks
    size, stages = outline.lengths(len(blocks)).start, outline.stages
    own = bounds.classes[bounds.commonest[0]]
    others = [one != own for one in bounds.classes]
    others += [True] * (len(blocks) - len(others))
    before = [0, *accumulate(others)]
    found = []
    for s in range(stages):
        first = max(s * size, len(blocks) - (stages - s) * (size + 1))
        last = min((s + 1) * (size + 1), len(blocks) - (stages - s - 1) * size)
        found.append(max(0, size - (before[last] - before[first])))
    return found


@lru_cache(maxsize=4096)
def _peaks(schedule: str, positions: int, stages: int, microbatches: int) -> NDArray[np.int64]:
    """Microbatches in flight beside gradients, over positions, peaks and turns; the last peak again where some lack."""
    found = [own.later for own in microbatches_in_flight(schedule, positions, stages, microbatches)]
    most = max(map(len, found))
    return np.array([(*own, *(own[-1:] * (most - len(own)))) for own in found], dtype=np.int64)


def _turns(
    room: NDArray[np.int64], state: int, sizes: tuple[int, int], peaks: NDArray[np.int64], least: NDArray[np.int64],
    most: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Blocks each position of several stages holds that need not recompute, and all of them; 0 where none fit.

    Its stages hold `least` blocks of the class each at least and `most` at most. Turns of which fewest microbatches are
    in flight are the first that need not recompute.
    """
    living = peaks * least[:, None, :]
    free = (room - least.sum(axis=1) * state)[:, None] - living.sum(axis=2) * min(sizes)
    needs = np.sort(living * max(0, sizes[0] - sizes[1]), axis=2).cumsum(axis=2)
    turns = (needs <= free[:, :, None]).sum(axis=2).min(axis=1)
    fits = (free >= 0).all(axis=1)
    return np.stack([turns * most * fits, least.shape[1] * most * fits], axis=1)


def _lone(room: int, state: int, sizes: tuple[int, int], peaks: tuple[tuple[int, ...], ...]) -> tuple[int, int]:
    """Blocks a position of one stage holds, none recomputed, and all of them."""
    living = max(peak[0] for peak in peaks)
    kept, again = (max(0, room) // max(1, state + living * size) for size in sizes)
    return kept, again


def _by_rows(loads: tuple[tuple[tuple[int, int], ...], ...]) -> list[tuple[int, NDArray[np.int64]]]:
    """Of each number of rows the bytes that a replica with them has at each position; `ENDLESS` where there is none."""
    rows = sorted({rows for own in loads for rows, _ in own})
    return [(each, np.array([dict(own).get(each, ENDLESS) for own in loads], dtype=np.int64)) for each in rows]
