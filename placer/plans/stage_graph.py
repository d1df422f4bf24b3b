"""StageGraph: which stages wait for which, and where they sit.

In a chain, as every pipeline schedule of `schedule` has it, stage s waits for stage s - 1 and sits at position
s % positions. A graph of branches comes from what the stages of a plan read of each other (`transfers.stage_graph`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class StageGraph:
    """Per stage its position, the earlier stages it reads of, the later ones whose gradients it waits for, and the
    share of the work that it is (any unit: only ratios count)."""

    at: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    awaits: tuple[tuple[int, ...], ...]
    work: tuple[float, ...]

    @property
    def positions(self) -> int:
        """Number of positions."""
        return max(self.at) + 1

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Per stage how often the longest way from it to the end changes the position."""
        found = [0] * len(self.at)
        for stage in reversed(range(len(self.at))):
            for before in self.reads[stage]:
                found[before] = max(found[before], found[stage] + (self.at[before] != self.at[stage]))
        return tuple(found)

    @cached_property
    def left(self) -> tuple[float, ...]:
        """Per stage the work of the longest way from it to the end, its own with it."""
        found = list(self.work)
        for stage in reversed(range(len(self.at))):
            for before in self.reads[stage]:
                found[before] = max(found[before], self.work[before] + found[stage])
        return tuple(found)


def chain(stages: int, positions: int | None = None) -> StageGraph:
    """Stages that wait for each other in their order, all of the same work."""
    every = range(stages)
    return StageGraph(
        at=tuple(stage % (positions or stages) for stage in every),
        reads=tuple((stage - 1,) if stage else () for stage in every),
        awaits=tuple((stage + 1,) if stage + 1 < stages else () for stage in every),
        work=(1.0,) * stages,
    )


def of_reads(at: Sequence[int], reads: Iterable[tuple[int, int, bool]], work: Sequence[float]) -> StageGraph:
    """The graph of (stage that makes, stage that reads, whether a gradient comes back), each pair any number of times.

    `at` and `work` are of each stage; a stage reads of earlier ones only.
    """
    before: list[set[int]] = [set() for _ in at]
    behind: list[set[int]] = [set() for _ in at]
    for source, target, back in reads:
        before[target].add(source)
        if back:
            behind[source].add(target)
    return StageGraph(
        at=tuple(at),
        reads=tuple([tuple(sorted(stages)) for stages in before]),
        awaits=tuple([tuple(sorted(stages)) for stages in behind]),
        work=tuple(work),
    )
