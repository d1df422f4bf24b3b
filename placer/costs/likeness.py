"""Which stages of a plan are alike, so that one is priced for all of them.

Alike are stages of the same choices whose blocks are alike one by one and send the same on, on devices that stand alike
(`communication.footing`), to each other and to those that they speak to. Their costs are the very same numbers: sizes
are integers, and seconds of blocks lie on a grid on which sums are exact (`exact_sums`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property

from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.workload import Workload
from placer.io.memo import remembered
from placer.plans.plan import Layout, Stage
from placer.plans.transfers import made_by
from placer.spmd.cross_mesh import Mesh


@dataclass(frozen=True, eq=False)
class Likeness:
    """What stages of one graph have in common that are alike."""

    work: Workload
    ranges: BlockRanges
    _ranges: dict[Hashable, int] = field(default_factory=dict)
    _kept: dict[int, Layout | None] = field(default_factory=dict)

    def of(self, stage: Stage, following: Mesh, leading: Mesh, stand: int | None) -> Hashable:
        """Equal for stages that are alike and speak to alike meshes whose devices `stand` alike (`footing`); of devices
        that are no groups (None) for the same devices only."""
        others = tuple((mesh.shares, mesh.degree, self._identity(mesh.layout)) for mesh in (following, leading))
        devices = (stage.devices, following.devices, leading.devices) if stand is None else stand
        own = stage.shares, stage.sharding, stage.again, stage.reduction
        return self.blocks(stage.first, stage.last), own, others, devices

    @remembered
    def blocks(self, first: int, last: int) -> int:
        """A number that ranges of blocks share which are alike."""
        made = ((block - first, output) for block, output in map(made_by, self._leaving(first, last)))
        found = self._each[first:last], self.ranges.alike(first, last), tuple(made)
        return self._ranges.setdefault(found, len(self._ranges))

    @cached_property
    def _each(self) -> tuple[Hashable, ...]:
        """The class of each block and what it holds."""
        blocks = enumerate(self.work.graph.blocks)
        return tuple((block.kind, self.ranges.of(number, number + 1).counts) for number, block in blocks)

    def _leaving(self, first: int, last: int) -> tuple[str, ...]:
        return self.ranges.crossing.leaving(first, last)

    def _identity(self, layout: Layout | None) -> int:
        """Layouts are told by identity, and kept, so that none leaves its to another."""
        self._kept.setdefault(id(layout), layout)
        return id(layout)
