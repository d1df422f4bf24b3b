"""Every placement of a small model's blocks over the positions of an outline, but for those that cannot be better.

A position computes all of its blocks for every microbatch, one after the other, so that a step takes no less than

    full microbatches x seconds of its blocks

of any position: a beginning of a placement whose bound reaches the best score is not gone on with. Positions on devices
of their own are told apart; nothing else is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from placer.strategies.space.block_costs import BlockSeconds
from placer.strategies.space.placements import Placement, Placing, Score

# What two ways to add up the same seconds may differ by.
ROUNDING = 1e-9


class Complete:
    """Judges placements, at most `most` of them and until `over`."""

    def __init__(self, *, most: int, over: Callable[[], bool]) -> None:
        self.most, self.over = most, over
        self.evaluations = 0

    @property
    def spent(self) -> bool:
        """Whether it may judge no other."""
        return self.over() or self.evaluations >= self.most

    def best(self, placing: Placing, seconds: BlockSeconds, ceiling: Score) -> tuple[Score, Placement] | None:
        """The best placement of an outline, if one is better than `ceiling`; the best so far where it is spent."""
        found, best = None, ceiling
        every = filter(placing.allowed, self._placements(placing, seconds, lambda: best))
        for placement in every:
            if self.spent:
                break
            self.evaluations += 1
            score = placing.score(placement)
            if score < best:
                best, found = score, (score, placement)
        return found

    def _placements(self, placing: Placing, seconds: BlockSeconds, best: Callable[[], Score]) -> Iterator[Placement]:
        outline = placing.outline
        full = outline.microbatches.count(outline.microbatches[0])
        loads, chosen = [0.0] * outline.positions, list[int]()

        def going_on() -> Iterator[Placement]:
            if len(chosen) == len(seconds):
                yield tuple(chosen)
                return
            own = seconds[len(chosen)]
            for position in range(outline.positions):
                loads[position] += own[position]
                over, least = best()
                if over or full * loads[position] < least * (1 + ROUNDING):
                    chosen.append(position)
                    yield from going_on()
                    chosen.pop()
                loads[position] -= own[position]

        return going_on()
