"""What the blocks of a model read of each other: the graph that is placed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from placer.graph import Graph
from placer.plans.transfers import made_by


@dataclass(frozen=True, kw_only=True)
class BlockGraph:
    """`reads[b]`: the blocks whose values block b reads, with these values, in the order of the blocks; `kinds[b]`: the
    number of its class; `tied[b]`: its parameters that other blocks have too."""

    reads: tuple[tuple[tuple[int, tuple[str, ...]], ...], ...]
    kinds: tuple[int, ...]
    tied: tuple[tuple[str, ...], ...]

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
        tied = graph.tied
        return BlockGraph(
            reads=tuple(found),
            kinds=tuple([block.kind for block in graph.blocks]),
            tied=tuple([tuple([name for name in block.parameters if name in tied]) for block in graph.blocks]),
        )

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
    def twins(self) -> tuple[tuple[int, ...], ...]:
        """Blocks of one class that read of the same blocks and are read by the same, as tables of a recommender or
        heads of tasks: which of them stands where makes no difference. What is tied is tied to the same."""
        found: dict[Hashable, list[int]] = {}
        for block, kind in enumerate(self.kinds):
            found.setdefault((kind, self.reads[block], self.readers[block], self.tied[block]), []).append(block)
        return tuple(tuple(own) for own in found.values() if len(own) > 1)

    @cached_property
    def twin_of(self) -> tuple[int, ...]:
        """Of each block the first of its twins; itself where it has none."""
        first = {block: own[0] for own in self.twins for block in own}
        return tuple([first.get(block, block) for block in range(self.size)])

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

    def breadth(self, weights: Sequence[float]) -> float:
        """All weights of the blocks over those of the heaviest way through them: 1 where nothing lies beside it."""
        ways: list[float] = []
        for own, before in zip(weights, self.reads, strict=True):
            ways.append(own + max((ways[maker] for maker, _ in before), default=0.0))
        return sum(weights) / max(ways) if any(ways) else 1.0

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


# Branches that hold less than this beside the heaviest way are not worth a search.
BROAD = 1.1


def branches_matter(graph: Graph) -> bool:
    """Whether much of a model's FLOPs, or of its parameters, lies in branches beside each other."""
    blocks, kinds = BlockGraph.of(graph), [graph.classes[block.kind] for block in graph.blocks]
    flops = [float(graph.class_flops[block.kind].at(graph.rows)) for block in graph.blocks]
    parameters = [float(sum(parameter.elements for parameter in kind.parameters)) for kind in kinds]
    return blocks.branches and max(blocks.breadth(flops), blocks.breadth(parameters)) >= BROAD
