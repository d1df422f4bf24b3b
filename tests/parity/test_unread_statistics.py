"""Norms whose results nothing reads (an auxiliary head that the loss leaves out) take the statistics of each step."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import placer
from eager_ranks import differences, on_one_device, trained
from placer import RunSettings, tracer
from placer.plans.plan import Plan
from pool import on_ranks

pytestmark = pytest.mark.in_turns

BATCH = {"x": (6, 2, 5), "y": ((6,), "int64")}
SETTINGS = RunSettings(precision="float64", optimizer="sgd", momentum=0.9)
LAYOUTS: dict[str, dict[str, object]] = {
    "one device": {"data": 1, "pipeline": 1, "tensor": 1},
    "stages": {"pipeline": 2, "microbatches": 1},
    "devices that divide ops": {"tensor": 2, "pipeline": 1},
}


class Auxiliary(nn.Module):
    """A head that only an evaluation looks at, and norms of which forward wants nothing but the statistics."""

    def __init__(self, *, reads: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(2, 4, 3, padding=1), nn.Linear(4, 2)
        self.head = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Conv1d(4, 2, 1))
        self.seen = nn.InstanceNorm1d(4, track_running_stats=True)
        self.reads = reads

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.relu(self.one(x))
        self.head(h)
        self.seen(h)
        scores = self.two(h.mean(2))
        if self.reads:
            mean = self.seen.running_mean
            assert mean is not None
            scores = scores + mean[:2]
        return functional.cross_entropy(scores, y)


def reading() -> nn.Module:
    """One that reads what its norm has just taken."""
    return Auxiliary(reads=True)


@cache
def plan_of(factory: str, layout: str) -> Plan:
    """The model so laid out."""
    pins = LAYOUTS[layout]
    ranks = 1 if layout == "one device" else 2
    return placer.plan(f"{__name__}:{factory}", f"localx{ranks}", batch=BATCH, pins=pins, settings=SETTINGS, budget=50)


CASES = [*(("Auxiliary", layout) for layout in LAYOUTS), ("reading", "one device"), ("reading", "stages")]


@pytest.mark.parametrize(("factory", "layout"), CASES)
def test_statistics_that_no_result_needs_are_taken_as_on_one_device(factory: str, layout: str) -> None:
    plan = plan_of(factory, layout)
    expected = on_one_device(plan)
    assert expected.state["head.1.running_mean"].abs().max() > 0.01
    for found in on_ranks(plan.world_size, trained, plan):
        assert differences(found, expected) == []


def test_they_are_of_the_whole_batch() -> None:
    graph = tracer.capture(Auxiliary(), batch=BATCH)
    with pytest.raises(placer.PlacerError, match=r"batch_norm.* takes the mean and variance of the whole batch"):
        placer.plan(Auxiliary(), "localx2", batch=BATCH, pins={"data": 2}, budget=10)
    assert any(op.target.startswith("aten.batch_norm") for _, op in graph.ops)
