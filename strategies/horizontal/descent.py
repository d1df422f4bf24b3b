"""Descent: other positions for blocks, as long as the plan gets better.

    a run           all blocks of an unbranched run go to one other position
    part of a run   the blocks of a run from one on, or up to one, that stand on one position go to another
Moves are tried in an order of their own for every round (by the seed), the first that helps is taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.placements import Placement, Placing, Score

# What counts as better: less is rounding.
LEAST_GAIN = 1e-9


class Descent:
    """Judges placements, at most `most` of them and until `over`."""

    def __init__(self, placing: Placing, rng: random.Random, *, most: int, over: Callable[[], bool]) -> None:
        self._placing, self._rng, self._most, self._over = placing, rng, most, over
        self._known: dict[Placement, Score] = {}

    @property
    def evaluations(self) -> int:
        """Placements that were judged."""
        return len(self._known)

    @property
    def spent(self) -> bool:
        """Whether it may judge no other."""
        return self._over() or self.evaluations >= self._most

    def scored(self, placement: Placement) -> Score:
        """What a placement is worth."""
        if placement not in self._known:
            self._known[placement] = self._placing.best(placement)[0]
        return self._known[placement]

    def down(self, start: Placement) -> Placement:
        """The placement from which no move helps, or the best so far when the budget is spent."""
        best, least = start, self.scored(start)
        while True:
            for moved in self._shuffled(best):
                if self.spent:
                    return best
                score = self.scored(moved)
                if score[0] < least[0] or (score[0] == least[0] and score[1] < least[1] * (1 - LEAST_GAIN)):
                    best, least = moved, score
                    break
            else:
                return best

    def _shuffled(self, placement: Placement) -> list[Placement]:
        every = neighbours(placement, self._placing.blocks, self._placing.outline.positions)
        found = list(filter(self._placing.allowed, dict.fromkeys(every)))
        self._rng.shuffle(found)
        return found


def neighbours(placement: Placement, blocks: BlockGraph, positions: int) -> Iterator[Placement]:
    """Every placement one move away."""
    for run in blocks.runs:
        for target in range(positions):
            if any(placement[block] != target for block in run):
                yield _moved(placement, run, target)
        for index, block in enumerate(run):
            for part in (_alike(placement, run[index:]), _alike(placement, run[: index + 1][::-1])):
                for target in range(positions):
                    if placement[block] != target and len(part) < len(run):
                        yield _moved(placement, part, target)


def _alike(placement: Placement, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """The blocks up to the first that stands elsewhere than the first of all."""
    length = next((i for i, b in enumerate(blocks) if placement[b] != placement[blocks[0]]), len(blocks))
    return blocks[:length]


def _moved(placement: Placement, blocks: tuple[int, ...], target: int) -> Placement:
    moving = set(blocks)
    return tuple(target if block in moving else place for block, place in enumerate(placement))
