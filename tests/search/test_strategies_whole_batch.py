"""Batches that may not be divided: their splits are made for all rows at once, and no pin beats the free search."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from placer import tracer
from placer.api import solve
from placer.cluster.cluster import Cluster
from placer.errors import InfeasibleError
from placer.graph import Graph
from placer.plans.plan import ModelRef, Plan
from placer.plans.settings import RunSettings
from placer.search.asked import parse_pins
from placer.search.judge import solve_with
from placer.search.problem import Problem
from placer.strategies.intra_op.likely_layouts import likely_layouts
from problems import cluster, device, nodes

pytestmark = pytest.mark.in_turns

ROWS, WIDTH = 64, 64
PINS = (
    "tensor=2", "tensor=4", "tensor=1", "pipeline=1", "pipeline=2", "data=1", "recompute=yes", "recompute=no",
    "rows=1", "rows=2", "rows=4", "microbatches=1", "schedule=gpipe",
)  # fmt: skip


class Pairs(nn.Module):
    """Two towers whose rows all meet in the loss, as CLIP's do."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.left, self.right = (
            nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))] * depth)
            for _ in range(2)
        )

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        scores = self.left(left) @ self.right(right).T
        return nn.functional.cross_entropy(scores, torch.arange(len(left), device=left.device))


class Rowwise(nn.Module):
    """A mean over rows, which replicas may divide."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.line(x)
        return made.pow(2).mean()


@cache
def graph() -> Graph:
    return tracer.capture(
        tracer.resolve(Pairs()), batch={"left": torch.zeros(ROWS, WIDTH), "right": torch.zeros(ROWS, WIDTH)}
    )


def machines(share: float) -> Cluster:
    """Four devices each of which has that share of what the whole model keeps of a batch."""
    held = graph().saved_bytes + 4 * graph().parameter_bytes
    return cluster(*[device(memory=int(share * held), rate=1e10)] * 4)


def given(share: float, *pins: str, on: Cluster | None = None) -> Problem:
    return Problem(
        graph=graph(), cluster=on or machines(share), settings=RunSettings(clip_norm=None), rows=ROWS,
        model=ModelRef(kind="module", reference="made by a test", fingerprint="0"), pins=parse_pins(pins, graph()),
    )  # fmt: skip


def seconds(share: float, *pins: str) -> float | None:
    try:
        return step_seconds(solve(given(share, *pins)))
    except InfeasibleError:
        return None


def step_seconds(plan: Plan) -> float:
    assert plan.ledger is not None
    return plan.ledger.step_seconds


@pytest.mark.parametrize("share", [4.0, 0.5])
def test_no_pin_gives_a_faster_plan_than_the_search_without_it(share: float) -> None:
    free = seconds(share)
    for pin in PINS:
        pinned = seconds(share, pin)
        assert pinned is None or (free is not None and free <= pinned * (1 + 1e-9)), pin


@pytest.mark.parametrize(
    "machines", [machines(4.0), nodes(device(rate=1e9), per_node=2, count=2)], ids=["a node", "two nodes"]
)
def test_all_devices_have_rows_of_their_own_where_products_take_longest(machines: Cluster) -> None:
    plan = solve(given(4.0, on=machines))
    assert [layout.axes for layout in plan.layouts] == [(("rows", 4),)]
    assert len(plan.stages) == 1 and plan.stages[0].devices == (0, 1, 2, 3)


@pytest.mark.parametrize("pins, degree", [((), 4), (("rows=2",), 2), (("rows=1",), 1)])
def test_data_parallel_gives_devices_rows_of_their_own_in_one_replica(pins: tuple[str, ...], degree: int) -> None:
    plan = solve_with(given(4.0, *pins), "data").plan
    assert plan.stages[0].degree == degree and plan.stages[0].replicas == len(plan.stages) == 1
    assert [layout.axes for layout in plan.layouts] == [(("rows", degree),)] * (degree > 1)


def test_data_parallel_takes_the_devices_of_a_kind_where_they_are_sooner_than_all() -> None:
    slow, fast = device(rate=1e8), device(rate=1e10)
    assert solve_with(given(4.0, on=cluster(slow, slow, fast, fast)), "data").plan.stages[0].devices == (2, 3)
    alike = device(rate=1e9)
    assert len(solve_with(given(4.0, on=cluster(alike, alike, alike, alike)), "data").plan.stages[0].devices) == 4


def test_data_parallel_does_not_cut_the_rows_of_a_replica_that_may_be_many() -> None:
    divisible = tracer.capture(tracer.resolve(Rowwise()), batch={"x": torch.zeros(ROWS, WIDTH)})
    pins = parse_pins(("rows=2",), divisible)
    with pytest.raises(InfeasibleError, match="leave no plan of the kind data"):
        solve_with(replace(given(4.0), graph=divisible, pins=pins), "data")


def test_the_last_stage_may_lie_on_a_device_of_another_kind_than_the_first() -> None:
    """The first device of the cluster is the fastest, and too small for the blocks in front."""
    held = graph().saved_bytes + 4 * graph().parameter_bytes
    roomy = device(memory=4 * held, rate=1e9)
    machines = cluster(device(name="fast", memory=held * 47 // 100, rate=1e11), roomy, roomy)
    found = solve_with(given(4.0, "tensor=1", "rows=1", "pipeline=2", on=machines), "stages")
    assert found.plan.stages[-1].devices == (0,)
    assert found.bound is not None and found.bound <= step_seconds(found.plan) * (1 + 1e-9)


def test_the_plan_says_that_the_batch_is_not_divided_and_which_line_is_the_reason() -> None:
    text = " ".join(str(solve(given(4.0))).split())
    assert "the batch is not divided, neither over replicas nor in microbatches" in text
    assert "test_strategies_whole_batch.py:" in text


def test_list_schedulers_place_branches_on_groups_whose_devices_have_rows_of_their_own() -> None:
    machines = nodes(device(rate=1e9), per_node=2, count=2)
    plan = solve_with(given(4.0, on=machines), "heft").plan
    assert [layout.axes for layout in plan.layouts] == [(("rows", 2),)]
    assert {stage.devices for stage in plan.stages} == {(0, 1), (2, 3)} and plan.schedule == "branched"
    alone = solve_with(given(4.0, "rows=1", on=machines), "heft").plan
    assert not alone.layouts and step_seconds(plan) < 0.7 * step_seconds(alone)


def test_list_schedulers_ask_for_no_rows_where_a_batch_may_be_divided_or_a_pin_forbids_them() -> None:
    divisible = tracer.capture(tracer.resolve(Rowwise()), batch={"x": torch.zeros(ROWS, WIDTH)})
    for problem in (replace(given(4.0), graph=divisible), given(4.0, "rows=1"), given(4.0, "tensor=2")):
        found = [layout for each in likely_layouts(problem) for layout in each if layout is not None]
        assert all(axis != "rows" for layout in found for axis, _ in layout.axes)
