"""Where stages may end so that those after them still can, and the few ends that are offered.

With L, M the least and the most blocks of a stage, n blocks, S stages, and low(s), high(s) what pinned blocks leave:

    earliest(s) = max(low(s), earliest(s + 1) - M),   latest(s) = min(high(s), latest(s + 1) - L);   both n of the last

A stage that begins at block i ends in [max(earliest, i + L), min(latest, i + M)], which is never empty if the first's
is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placer.search.problem import Problem
from placer.strategies.space.outline import Outline, pinned_stage

# An end is moved from where stages are level by up to so many steps, each of an eighth of a stage's blocks.
STEPS = 3
FINENESS = 8


class Ends(NamedTuple):
    """The first and the last block before which a stage may end."""

    earliest: int
    latest: int


def stage_ends(problem: Problem, outline: Outline) -> tuple[Ends, ...]:
    """The ends of each stage; none at all where pinned blocks leave no cuts."""
    blocks, pinned = len(problem.graph.blocks), pinned_stage(problem)
    lengths = outline.lengths(blocks)
    if not len(lengths) or any(stage >= outline.stages for stage in pinned.values()):
        return ()
    ends = [Ends(blocks, blocks)]
    for stage in reversed(range(outline.stages - 1)):
        low = max((block + 1 for block, wanted in pinned.items() if wanted <= stage), default=1)
        high = min((block for block, wanted in pinned.items() if wanted > stage), default=blocks)
        ends.append(Ends(max(low, ends[-1].earliest - lengths[-1]), min(high, ends[-1].latest - lengths[0])))
    first = Ends(max(ends[-1].earliest, lengths[0]), min(ends[-1].latest, lengths[-1]))
    return tuple(reversed(ends)) if all(e.earliest <= e.latest for e in (first, *ends)) else ()


def allowed_ends(problem: Problem, outline: Outline, ends: Sequence[Ends], *, stage: int, first: int) -> Ends:
    """The ends of a stage that begins at block `first`."""
    lengths = outline.lengths(len(problem.graph.blocks))
    return Ends(max(ends[stage].earliest, first + lengths[0]), min(ends[stage].latest, first + lengths[-1]))


def offered_ends(problem: Problem, outline: Outline, allowed: Ends, level: int, most: int) -> tuple[int, ...]:
    """Of those allowed some around `level`, where all stages would take equally long, in order; at most `most`."""
    steps = min(STEPS, (most - 1) // 2)
    step = max(1, len(problem.graph.blocks) // outline.stages // FINENESS)
    moved = (level + step * count for count in range(-steps, steps + 1))
    return tuple(sorted({min(allowed.latest, max(allowed.earliest, end)) for end in moved}))
