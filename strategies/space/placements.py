"""A position for every block, made a plan and judged.

Blocks that follow each other in the model's order on one position are a stage. It ends where something is sent, so
that it goes at once, and before what must be waited for, so that what does not need it is done by then. The other way
(`twins_joined`) is without ends between twins, which wait for the same and are waited for together: which of several
twins a position has makes no difference, and those next to each other are one stage, which is launched once. Which way
is faster depends on what sending takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from placer.costs.step_estimate import estimate_with
from placer.plans.plan import Layout, Plan, Recompute, Stage
from placer.search.problem import Problem
from placer.strategies.space.block_graph import BlockGraph
from placer.strategies.space.outline import Outline, fused

#: Of each block the number of its position in the outline.
Placement: TypeAlias = tuple[int, ...]
#: First and last (exclusive) block of each stage.
Ranges: TypeAlias = tuple[tuple[int, int], ...]
#: Bytes that do not fit, then seconds of a step: the smaller is the better.
Score: TypeAlias = tuple[int, float]


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Placements of the blocks of a problem over the positions of an outline, under a layout if there is one."""

    problem: Problem
    blocks: BlockGraph
    outline: Outline
    layout: Layout | None
    recompute: Recompute

    def allowed(self, placement: Placement) -> bool:
        """Whether as many positions are used as are pinned."""
        return self.problem.pins.pipeline in (None, len(set(placement)))

    def ways(self, placement: Placement) -> Iterator[tuple[Placement, Ranges]]:
        """Placements with their stages, as good or better by what twins may stand for each other: one or two."""
        plain = placement, tuple(stage_ranges(placement, self.blocks))
        yield plain
        if self.blocks.twins and not self.problem.pins.stage_of:
            joined = twins_joined(placement, self.blocks)
            if joined != plain:
                yield joined

    def plan(self, placement: Placement, ranges: Ranges) -> Plan:
        """The plan of a placement with these stages."""
        problem, outline = self.problem, self.outline
        stages = tuple(
            Stage(
                first=first, last=last, devices=outline.devices(placement[first]), shares=outline.shares,
                sharding=outline.sharding, recompute=self.recompute, layout=None if self.layout is None else 0,
                degree=outline.degree,
            )
            for first, last in ranges
        )  # fmt: skip
        return Plan(
            model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings,
            stages=stages, schedule="branched", microbatches=outline.microbatches, seed=problem.seed,
            layouts=() if self.layout is None else (self.layout,),
        )  # fmt: skip

    def finished(self, placement: Placement, ranges: Ranges) -> Plan:
        """The plan with its gradients in the best buckets."""
        return fused(self.problem, self.plan(placement, ranges))

    def best(self, placement: Placement) -> tuple[Score, Placement, Ranges]:
        """The better way of a placement, with its score."""
        return min((self.score(own, ranges), own, ranges) for own, ranges in self.ways(placement))

    def score(self, placement: Placement, ranges: Ranges) -> Score:
        """Of the plan of a placement with these stages, in the words of the one estimate."""
        plan = self.plan(placement, ranges)
        ledger = estimate_with(self.problem.costs, plan)
        devices = self.problem.cluster.devices
        over = 0
        for mesh, held in zip(plan.meshes, ledger.memory, strict=True):
            over += max(0, held.total - min(devices[device].memory_bytes for device in mesh.devices))
        return over, ledger.step_seconds


def stage_ranges(placement: Placement, blocks: BlockGraph) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) block of each stage of a placement."""
    return pairwise((0, *[b for b in range(1, blocks.size) if _parted(blocks, placement, b)], blocks.size))


def twins_joined(placement: Placement, blocks: BlockGraph) -> tuple[Placement, Ranges]:
    """The placement with the twins of a position next to each other, and the stages that these are together."""
    found = list(placement)
    for twins in blocks.twins:
        for block, position in zip(twins, sorted([placement[twin] for twin in twins]), strict=True):
            found[block] = position
    gathered = tuple(found)
    ends = [block for block in range(1, blocks.size) if _parted(blocks, gathered, block, joined=True)]
    return gathered, tuple(pairwise((0, *ends, blocks.size)))


def _parted(blocks: BlockGraph, placement: Placement, block: int, *, joined: bool = False) -> bool:
    """Whether a stage begins at `block`; not where twins on one position are `joined`."""
    own, before = placement[block], placement[block - 1]
    if joined and own == before and blocks.twin_of[block] == blocks.twin_of[block - 1]:
        return False
    waits = any(placement[maker] != own for maker, _ in blocks.reads[block])
    sends = any(placement[reader] != before for reader in blocks.readers[block - 1])
    return own != before or waits or sends
