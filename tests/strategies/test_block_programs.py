"""The integer program of splits of real layers on real devices, in microseconds, against every assignment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from placer.cluster.cluster import Cluster
from placer.costs.costs import Costs
from placer.graph import BlockClass
from placer.plans.plan import Split
from placer.plans.settings import RunSettings
from placer.spmd.layout_conversions import edges
from placer.strategies.intra_op.block_ilp import Border, best_split
from placer.strategies.intra_op.split_costs import SplitCosts, SplitReplica
from placer.tracer import capture


class Layers(nn.Module):
    """The last convolutions of Inception v3, each with its norm."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((768, 192, 1, 1), (192, 320, 3, 2), (320, 384, 1, 1), (384, 384, (1, 3), 1), (384, 448, 1, 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.AvgPool2d(3, 1, 1), nn.Conv2d(i, o, size, stride, bias=False), nn.BatchNorm2d(o), nn.ReLU()
            )
            for i, o, size, stride in shapes
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = block(images)
        return images.mean()


def seconds_of(kind: BlockClass, split: Split, given: SplitCosts) -> float | None:
    """A split added up by hand, the host beside the device; None where a conversion cannot be."""
    found, apart, moves, passes = edges(kind, split), 0.0, 0, [0.0, 0.0]
    for one in found.conversions:
        moved = given.converting(one.reference, one.have, one.want)
        if moved is None:
            return None
        apart, moves = apart + moved, moves + given.moves(one.reference, one.have, one.want)
    for index, choice in enumerate(found.choices):
        cost = given.choices(index)[choice]
        passes = [passes[0] + cost.busy.forward, passes[1] + cost.busy.backward]
        apart += cost.inside + given.tie(cost)
    host = [whole + each * moves for whole, each in zip(given.host, given.host_each, strict=True)]
    host[1] *= given.trains  # no backward is issued where there is none
    kept = sum(given.keeping(p, s) for p, s in zip(kind.parameters, found.parameters, strict=True))
    return apart + kept + sum(map(max, passes, host))


def assignments(kind: BlockClass, border: Border, given: SplitCosts) -> Iterator[float]:
    options = [[choice.name for choice in given.choices(index)] for index in range(len(kind.ops))]
    for names in itertools.product(*options):
        split = Split(choices=names, inputs=border.inputs, outputs=border.outputs)
        seconds = seconds_of(kind, split, given)
        if seconds is not None:
            yield seconds


def test_no_assignment_is_cheaper_where_ops_take_microseconds() -> None:
    graph, machines, seen = capture(Layers(), batch="images=64x768x17x17"), Cluster.load("h100x8"), 0
    costs = Costs(graph, machines, RunSettings())
    for kind in graph.classes:
        given = SplitCosts(costs=costs, kind=kind, replica=SplitReplica(devices=tuple(range(8)), rows=64))
        for enters, leaves in itertools.product(("whole", "cut 2"), repeat=2):
            border = Border(inputs=(enters,) * len(kind.inputs), outputs=(leaves,) * len(kind.outputs))
            found = best_split(kind, border, given)
            if found is not None:
                assert found.seconds == pytest.approx(min(assignments(kind, border, given)), rel=1e-9)
                assert found.seconds == pytest.approx(seconds_of(kind, found.split, given), rel=1e-9)
                seen += 1
    assert seen >= 10
