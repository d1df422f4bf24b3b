"""Every stage graph of a small model's blocks over the positions of an outline, but for those that cannot be better.

A stage graph is a position for every block and a way to cut blocks that follow each other on one position into stages.
A position computes all of its blocks for every microbatch, one after the other, so that a step takes no less than

    full microbatches x seconds of its blocks

of any position: a beginning whose bound reaches the best score is not gone on with. What is left out besides was judged
before, under another order of the same devices.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from placer.strategies.space.block_costs import BlockSeconds
from placer.strategies.space.placements import Placement, Placing, Ranges, Score

# What two ways to add up the same seconds may differ by.
ROUNDING = 1e-9


class Graph(NamedTuple):
    """A position for every block, and the stages these make."""

    placement: Placement
    ranges: Ranges


def graphs(blocks: int, positions: int) -> int:
    """How many stage graphs there are."""
    return positions * int((positions + 1) ** (blocks - 1))


class Complete:
    """Judges stage graphs, at most `most` of them and until `over`."""

    def __init__(self, *, most: int, over: Callable[[], bool]) -> None:
        self.most, self.over = most, over
        self.evaluations = 0
        self._known: set[Hashable] = set()
        self._ceiling: Score = (sys.maxsize, math.inf)

    @property
    def spent(self) -> bool:
        """Whether it may judge no other."""
        return self.over() or self.evaluations >= self.most

    def best(self, placing: Placing, seconds: BlockSeconds, ceiling: Score) -> tuple[Score, Graph] | None:
        """The best stage graph of an outline, if one is better than `ceiling`; the best so far where it is spent."""
        found = None
        self._ceiling = ceiling
        for graph in self._graphs(placing, seconds):
            if self.spent:
                break
            if not placing.allowed(graph.placement) or not self._new(placing, graph):
                continue
            self.evaluations += 1
            score = placing.score(*graph)
            if score < self._ceiling:
                self._ceiling, found = score, (score, graph)
        return found

    def _new(self, placing: Placing, graph: Graph) -> bool:
        plan = placing.plan(*graph)
        key = plan.stages, plan.microbatches, tuple(map(id, plan.layouts))
        known = key in self._known
        self._known.add(key)
        return not known

    def _graphs(self, placing: Placing, seconds: BlockSeconds) -> Iterator[Graph]:
        outline = placing.outline
        full = outline.microbatches.count(outline.microbatches[0])
        loads, chosen, cuts = [0.0] * outline.positions, list[int](), [0]

        def going_on() -> Iterator[Graph]:
            block = len(chosen)
            if block == len(seconds):
                yield Graph(tuple(chosen), tuple(zip(cuts, [*cuts[1:], block], strict=True)))
                return
            for position in range(outline.positions):
                loads[position] += seconds[block][position]
                over, least = self._ceiling
                if over or full * loads[position] < least * (1 + ROUNDING):
                    chosen.append(position)
                    if not block or chosen[block - 1] == position:
                        yield from going_on()
                    if block:
                        cuts.append(block)
                        yield from going_on()
                        cuts.pop()
                    chosen.pop()
                loads[position] -= seconds[block][position]

        return going_on()
