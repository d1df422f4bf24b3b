"""What must hold between the answers for problems that are alike: a pin never beats the free search, one device more
never hurts, a kind of chip is what it does, not how it is called. Which plan is right nobody needs to know for it.

A stranger found each of these broken, on models and machines of his own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

import placer
from placer import simulator
from placer.cluster.cluster import Cluster, Curve, Device, Link, Node
from placer.costs.step_estimate import costs_of
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.search import played
from placer.search.asked import parse_pins
from placer.search.judge import judge, solve_with
from placer.simulator import Timeline
from problems import problem

pytestmark = pytest.mark.in_turns

LINK = Link(name="link", latency_seconds=1e-5, bandwidth=5e9)
ROUNDING = 1 + 1e-9


class Layers(nn.Module):
    """Linear layers one after the other."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = functional.relu(layer(x))
        return x


class Classes(nn.Module):
    """A wide perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Layers(512, 1024, 1024, 1024), nn.Linear(1024, 512)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.body(x)), y)


class Recommender(nn.Module):
    """Tables beside a tower, and a tower of them all."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 32) for count in (5000, 2000, 8000))
        self.bag, self.bottom = nn.EmbeddingBag(3000, 32, mode="sum"), Layers(13, 64, 64)
        self.between, self.top, self.head = nn.Linear(64, 32), Layers(160, 128, 128), nn.Linear(128, 1)

    def forward(
        self,
        dense: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        bags: torch.Tensor,
        y: torch.Tensor,
    ) -> torch.Tensor:
        looked_up = [table(one) for table, one in zip(self.tables, (a, b, c), strict=True)] + [self.bag(bags)]
        x = torch.cat([self.between(self.bottom(dense)), *looked_up], 1)
        return functional.binary_cross_entropy_with_logits(self.head(self.top(x)).squeeze(1), y)


def chip(name: str, *, speed: float = 1.0, memory: int = 2**26) -> Device:
    return Device(
        name=name, backend="cpu", memory_bytes=memory, memory_bandwidth=5e10 * speed,
        rates=(("float32", 1e12 * speed),), launch_seconds=5e-6,
        curve=Curve(points=((1e5, 0.1), (1e7, 0.7), (1e9, 0.95))),
    )  # fmt: skip


def machines(*devices: tuple[Device, int]) -> Cluster:
    return Cluster(name="machines", groups=((Node(name="node", devices=devices, link=LINK), 1),))


@cache
def graph_of(model: str, rows: int) -> Graph:
    numbers, whole = torch.zeros(rows, 512), torch.zeros(rows, dtype=torch.int64)
    if model == "classes":
        return placer.capture(Classes(), batch={"x": numbers, "y": whole})
    inputs = {"dense": torch.zeros(rows, 13), "a": whole, "b": whole, "c": whole}
    inputs |= {"bags": torch.zeros(rows, 5, dtype=torch.int64), "y": torch.zeros(rows)}
    return placer.capture(Recommender(), batch=inputs)


def planned(graph: Graph, cluster: Cluster, *pins: str) -> Plan:
    return solve_with(problem(graph, cluster, pins=parse_pins(pins, graph)), "auto").plan


def seconds(plan: Plan) -> float:
    return placer.estimate(plan).step_seconds


@pytest.mark.parametrize(
    ("model", "cluster", "pins"),
    [
        ("classes", machines((chip("a"), 3)), ("tensor=3",)),
        ("classes", machines((chip("a"), 3)), ("tensor=2",)),
        ("classes", machines((chip("a"), 6)), ("tensor=3",)),
        ("recommender", machines((chip("a"), 2), (chip("b", speed=0.5), 2)), ("pipeline=4",)),
        ("recommender", machines((chip("a"), 2), (chip("b", speed=0.5), 2)), ("tensor=1",)),
    ],
    ids=["three", "left over", "six", "branches", "uncut branches"],
)
def test_a_pin_is_not_faster_than_the_free_search(model: str, cluster: Cluster, pins: tuple[str, ...]) -> None:
    graph = graph_of(model, 12 if model == "classes" else 8)
    free, pinned = planned(graph, cluster), planned(graph, cluster, *pins)
    assert seconds(free) <= seconds(pinned) * ROUNDING
    assert free.bound is None or free.bound <= seconds(pinned) * ROUNDING


@pytest.mark.parametrize(("count", "memory"), [(2, 2**26), (4, 16383560), (6, 2**26)])
def test_one_device_more_is_not_slower(count: int, memory: int) -> None:
    graph = graph_of("classes", 12)
    few, more = (machines((chip("a", memory=memory), each)) for each in (count, count + 1))
    assert seconds(planned(graph, more)) <= seconds(planned(graph, few)) * ROUNDING


@pytest.mark.parametrize("count", [3, 4])
def test_a_kind_of_chip_is_the_same_under_two_names(count: int) -> None:
    graph, half = graph_of("classes", 12), count // 2
    one, two = machines((chip("a"), count)), machines((chip("a"), half), (chip("b"), count - half))
    assert seconds(planned(graph, one)) == seconds(planned(graph, two))


def test_devices_that_are_left_over_make_no_other_plan_illegal() -> None:
    """Two of three devices share ops, and the third has a stage of its own."""
    graph = graph_of("classes", 12)
    pinned = planned(graph, machines((chip("a"), 3)), "tensor=2", "pipeline=1", "data=1")
    assert [stage.degree for stage in pinned.stages] == [2]
    assert judge(costs_of(pinned), pinned).legal


class Wide(nn.Module):
    """Six layers of 16 MiB of weights and as much of each of their gradients and moments."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Layers(*[2048] * 7)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.body(x), y)


def short_machines() -> Cluster:
    """216 MiB beside the framework's: a pipeline of four whole stages fits, and so do faster splits of the layers."""
    device = Device(
        name="small", backend="cuda", memory_bytes=716 << 20, overhead_bytes=500 << 20, memory_bandwidth=4e11,
        rates=(("float32", 1e13),), launch_seconds=4e-6, curve=Curve(points=((1e7, 0.1), (1e9, 0.5), (1e11, 0.8))),
    )  # fmt: skip
    node = Node(
        name="node", devices=((device, 4),), link=Link(name="in", latency_seconds=5e-6, bandwidth=2e10), nic=LINK
    )
    return Cluster(name="short", groups=((node, 1),))


class Uneven(nn.Module):
    """One layer has most of the weights; the host takes longer to launch than a device to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Layers(64, 2048, 2048, 64, 64), nn.Linear(64, 5000)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.body(x)), y)


def test_ops_are_cut_where_few_microbatches_share_a_long_update() -> None:
    """All rows take hardly longer than a few, so that a step is one microbatch, and its update half of it."""
    device = Device(
        name="gpu", backend="cuda", memory_bytes=2**34, memory_bandwidth=3e11, launch_seconds=4e-6,
        rates=(("float32", 8e12), ("bfloat16", 3.2e13)), curve=Curve(points=((4e6, 0.02), (1e9, 0.5), (1e12, 0.8))),
    )  # fmt: skip
    link = Link(name="in", latency_seconds=5e-6, bandwidth=1.2e10)
    cluster = Cluster(name="gpus", groups=((Node(name="node", devices=((device, 4),), link=link), 1),))
    batch = {"x": torch.zeros(64, 64), "y": torch.zeros(64, dtype=torch.int64)}
    settings = placer.RunSettings(precision="bfloat16")
    free, pinned = (
        placer.plan(Uneven(), cluster, batch=batch, settings=settings, pins=pins) for pins in ((), ("tensor=4",))
    )
    assert free.bound is not None
    assert max(free.bound, seconds(free)) <= seconds(pinned) * ROUNDING


def launched(speed: float) -> Cluster:
    """Two GPUs whose host takes longer to issue small ops than they to do them."""
    device = Device(
        name="gpu", backend="cuda", memory_bytes=2**34, memory_bandwidth=3e11, launch_seconds=4e-6,
        rates=(("float32", 8e12 * speed),), curve=Curve(points=((4e6, 0.02), (1e9, 0.5), (1e12, 0.8))),
    )  # fmt: skip
    link = Link(name="in", latency_seconds=5e-6, bandwidth=1.2e10)
    return Cluster(name="gpus", groups=((Node(name="node", devices=((device, 2),), link=link), 1),))


ZERO_BUBBLE = ("schedule=zero-bubble", "pipeline=2", "data=1", "tensor=1", "microbatches=1")


def test_a_faster_chip_is_not_slower_where_the_host_is_waited_for() -> None:
    batch = {"x": torch.zeros(16, 512), "y": torch.zeros(16, dtype=torch.int64)}
    steps = [seconds(placer.plan(Classes(), launched(s), batch=batch, pins=ZERO_BUBBLE)) for s in (1.0, 1.5, 4.0)]
    assert steps[2] <= steps[1] * ROUNDING
    assert steps[1] <= steps[0] * ROUNDING


def test_a_frozen_weight_makes_no_step_longer_where_the_host_is_waited_for() -> None:
    batch = {"x": torch.zeros(16, 512), "y": torch.zeros(16, dtype=torch.int64)}
    model, steps = Classes(), list[float]()
    for frozen in (0, 1, 2):
        for layer in [model.head, *model.body.layers][:frozen]:
            layer.requires_grad_(False)
        steps.append(seconds(placer.plan(model, launched(1.0), batch=batch, pins=ZERO_BUBBLE)))
    assert steps[2] <= steps[1] * ROUNDING
    assert steps[1] <= steps[0] * ROUNDING


def test_layouts_that_hold_less_are_tried_too_where_memory_is_short() -> None:
    machines = short_machines()
    seconds, bounds = dict[tuple[str, ...], float](), list[float]()
    for pins in ((), ("tensor=2", "data=2"), ("tensor=4",), ("pipeline=4",)):
        plan = placer.plan(Wide(), machines, batch={"x": (512, 2048), "y": (512, 2048)}, pins=pins)
        assert plan.ledger is not None
        assert plan.bound is not None
        seconds[pins], bounds = plan.ledger.step_seconds, [*bounds, plan.bound]
    assert seconds[()] <= min(seconds.values()) * ROUNDING
    assert bounds[0] <= min(seconds.values()) * ROUNDING
    assert seconds[()] < 0.9 * seconds["pipeline=4",]


def test_what_fits_in_other_layouts_stays_where_one_that_holds_less_is_slower_when_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = placer.capture(Wide(), batch={"x": torch.zeros(512, 2048), "y": torch.zeros(512, 2048)})
    exact = solve_with(problem(graph, short_machines()), "stages").plan
    simulated = simulator.simulate

    def slower(given: Plan) -> Timeline:
        found, times = simulated(given), 1.0 if given.stages == exact.stages else 10.0
        return replace(found, ledger=replace(found.ledger, step_seconds=times * found.ledger.step_seconds))

    monkeypatch.setattr(played, "simulate", slower)
    assert planned(graph, short_machines()).stages == exact.stages
