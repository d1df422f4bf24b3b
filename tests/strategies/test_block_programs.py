"""The integer program of splits of real layers on real devices, in microseconds, against every assignment."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from placer.api import problem
from placer.cluster.cluster import Cluster
from placer.costs.compute.host_issue import HostSeconds
from placer.costs.costs import Costs
from placer.graph import BlockClass
from placer.plans.plan import Split
from placer.plans.settings import RunSettings
from placer.search.problem import Problem
from placer.strategies.intra_op import best_layout
from placer.strategies.intra_op.block_ilp import BestSplit, Border, OpenSplit, best_of, best_split, relaxed_of
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.intra_op.split_costs import SplitCosts, SplitReplica
from placer.tracer import capture
from split_blocks import seconds_of

pytestmark = pytest.mark.in_turns


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


def test_a_split_is_found_where_the_host_takes_far_longer_than_any_op(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machines = capture(Layers(), batch="images=64x768x17x17"), Cluster.load("h100x8")
    costs = Costs(graph, machines, RunSettings())
    for kind in graph.classes:
        given = SplitCosts(costs=costs, kind=kind, replica=SplitReplica(devices=tuple(range(8)), rows=64))
        for longer, enters in itertools.product((1e6, 1e9), ("whole", "cut 2")):
            border = Border(inputs=(enters,) * len(kind.inputs), outputs=("whole",) * len(kind.outputs))
            with monkeypatch.context() as slow:
                for name, seconds_of_host in (("host", given.host), ("host_each", given.host_each)):
                    slow.setattr(SplitCosts, name, HostSeconds(*(longer * one for one in seconds_of_host)))
                found = best_split(kind, border, given)
                assert found is not None
                assert found.seconds == pytest.approx(seconds_of(kind, found.split, given), rel=1e-9)


def test_a_class_without_ops_has_a_split() -> None:
    graph = capture(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), batch="input=2x2", loss_fn=mean_of)
    costs = Costs(graph, Cluster.load("h100x2"), RunSettings())
    kind = next(kind for kind in graph.classes if not kind.ops)
    border = Border(inputs=("whole",) * len(kind.inputs), outputs=("whole",) * len(kind.outputs))
    given = SplitCosts(costs=costs, kind=kind, replica=SplitReplica(devices=(0, 1), rows=2))
    found = best_split(kind, border, given)
    assert found is not None
    assert found.split.choices == ()


def mean_of(output: object, _: dict[str, torch.Tensor]) -> torch.Tensor:
    assert isinstance(output, torch.Tensor)
    return output.mean()


class Residual(nn.Module):
    """Blocks that the host takes about as long to issue as devices take for them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(192, 192, 3, padding=1), nn.BatchNorm2d(192), nn.ReLU(), nn.Conv2d(192, 192, 1))
            for _ in range(4)
        )
        self.out = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.cross_entropy(self.out(x.mean((2, 3))), y)


@pytest.fixture(scope="module")
def residual() -> Problem:
    return problem(Residual(), "a100-80gb-sxm4x8", batch="x=64x192x17x17,y=64:int64")


def test_splits_that_are_not_looked_for_are_in_no_better_layout(
    residual: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_open = list[OpenSplit]()

    def noted(*given: Any) -> BestSplit | OpenSplit | None:
        found = relaxed_of(*given)
        left_open.extend([found] if isinstance(found, OpenSplit) else [])
        return found

    monkeypatch.setattr(best_layout, "relaxed_of", noted)
    found = layouts(replace(residual, known_layouts={}), residual.costs)
    assert len(left_open) > 20
    monkeypatch.setattr(best_layout, "relaxed_of", best_of)
    assert layouts(replace(residual, known_layouts={}), residual.costs) == found


def test_seconds_that_do_not_end_leave_no_layout_out(residual: Problem) -> None:
    found = layouts(residual, residual.costs)
    hurried = replace(residual, until=time.perf_counter() + 3600, known_layouts={})
    assert sorted(layouts(hurried, residual.costs), key=repr) == sorted(found, key=repr)
