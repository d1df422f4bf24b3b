"""What the blocks of a model read of each other: the graph that is placed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from placer.graph import Graph
from placer.plans.transfers import made_by


@dataclass(frozen=True, kw_only=True)
class BlockGraph:
    """`reads[b]`: the blocks whose values block b reads, with these values, in the order of the blocks."""

    reads: tuple[tuple[tuple[int, tuple[str, ...]], ...], ...]

    @staticmethod
    def of(graph: Graph) -> BlockGraph:
        """That of a model."""
        found = []
        for block in graph.blocks:
            values: dict[int, dict[str, None]] = {}
            for reference in block.inputs:
                if reference.startswith("b") and made_by(reference)[0] >= 0:
                    values.setdefault(made_by(reference)[0], {})[reference] = None
            found.append(tuple((maker, tuple(own)) for maker, own in sorted(values.items())))
        return BlockGraph(reads=tuple(found))

    @property
    def size(self) -> int:
        """Number of blocks."""
        return len(self.reads)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Per block those that read its values."""
        found: list[list[int]] = [[] for _ in self.reads]
        for block, before in enumerate(self.reads):
            for maker, _ in before:
                found[maker].append(block)
        return tuple(map(tuple, found))

    @cached_property
    def branches(self) -> bool:
        """Whether some two blocks need nothing of each other, so that both could compute at the same time."""
        behind: list[int] = []
        for block, before in enumerate(self.reads):
            needed = 0
            for maker, _ in before:
                needed |= behind[maker] | 1 << maker
            behind.append(needed)
            if needed != (1 << block) - 1:
                return True
        return False

    @cached_property
    def runs(self) -> tuple[tuple[int, ...], ...]:
        """The blocks in unbranched runs: each but the first reads of the one before it alone, which nobody else does.

        What a block reads over several blocks (a value that is kept for later) does not part a run.
        """
        found: list[list[int]] = []
        where: dict[int, int] = {}
        for block, before in enumerate(self.reads):
            latest = max((maker for maker, _ in before), default=-1)
            run = where.get(latest)
            if run is not None and found[run][-1] == latest and {where[maker] for maker, _ in before} == {run}:
                found[run].append(block)
                where[block] = run
            else:
                where[block] = len(found)
                found.append([block])
        return tuple(map(tuple, found))
