"""Two-shape pipelines: on many devices plans of two shapes are found where they pay, their bounds hold, and nothing in
the family is missed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import pytest

from graphs import BlockSpec, chain_graph, gpt_graph, with_ties
from placer.cluster.cluster import Cluster, Level, Link, Node
from placer.costs.costs import Costs
from placer.errors import InfeasibleError
from placer.legality import check
from placer.plans.plan import Plan, Stage
from placer.plans.settings import RunSettings
from placer.search.judge import broken_pins, solve_with
from placer.search.problem import Pins, Problem, Solution
from placer.strategies.inter_op.equivalence import RangeClasses
from placer.strategies.inter_op.search import Stages
from placer.strategies.inter_op.submeshes import submesh
from placer.strategies.inter_op.submeshes.submesh import MOST_DEVICES, MOST_TWO_SHAPE_DEVICES, are_two_shapes
from placer.strategies.inter_op.submeshes.two_shapes import search as two_shape_search
from placer.strategies.inter_op.submeshes.two_shapes.search import TwoShapeSearch
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.oracle import exhaustive
from placer.strategies.oracle.enumeration import shaped_plans
from placer.strategies.space.device_orders import group_classes
from problems import cluster, device, nodes, problem, random_problem, tapered_problem, tied_problem, unequal_problem

WORK = BlockSpec(flops=10**9, parameters=1000, saved=1000, output=100, traffic=1000)
WEIGHTS = BlockSpec(flops=10**7, parameters=10**6, saved=1000, output=10, traffic=1000)
THIN = Link(name="thin", latency_seconds=1e-5, bandwidth=1e8)
SETTINGS = RunSettings(clip_norm=None)


def many(pins: Pins | None = None) -> Problem:
    """Blocks that compute much, then one that holds much, on 20 devices far from each other."""
    machines = cluster(*[device(rate=1e12)] * 20, link=THIN)
    pins = pins or Pins(schedule="1f1b", shard="none")
    return problem(chain_graph([WORK, WORK, WEIGHTS], rows=20), machines, settings=SETTINGS, pins=pins)


def seconds(found: object) -> float:
    assert isinstance(found, Solution)
    assert found.plan.ledger is not None
    return found.plan.ledger.step_seconds


def test_on_many_devices_early_work_and_late_weights_get_shapes_of_their_own() -> None:
    given = many()
    assert given.cluster.size > MOST_DEVICES
    found = solve_with(given, "stages")
    assert len({stage.replicas for stage in found.plan.stages}) == 2
    assert check(found.plan) == ()
    assert seconds(found) < 0.9 * seconds(Stages(shapes=False).solve(given))
    assert found.bound is not None
    assert found.bound <= seconds(found)


def test_unlike_classes_of_many_devices_get_shapes_of_their_own() -> None:
    fast, slow = device(rate=4e12, name="fast"), device(rate=1e12, name="slow")
    machines = cluster(*[fast] * 14, *[slow] * 3, link=THIN)
    pins = Pins(schedule="1f1b", shard="none", microbatches=2, pipeline=2)
    given = problem(chain_graph([WORK, WORK, WEIGHTS], rows=28), machines, settings=SETTINGS, pins=pins)
    found = solve_with(given, "stages")
    assert len({stage.replicas for stage in found.plan.stages}) == 2
    assert seconds(found) < seconds(Stages(shapes=False).solve(given))


def test_pins_hold_at_every_position_of_a_line() -> None:
    free = Pins(schedule="1f1b", shard="none", microbatches=2)
    for pins in (
        replace(free, data=1), replace(free, pipeline=2), replace(free, schedule="gpipe"),
        replace(free, stage_of=(("blocks.1", 1),)),
    ):  # fmt: skip
        assert broken_pins(solve_with(many(pins), "stages").plan, pins) == ()


@pytest.mark.in_turns
def test_patience_that_ends_leaves_a_bound_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    best = seconds(solve_with(many(), "stages"))
    monkeypatch.setattr(two_shape_search, "PATIENCE", 1)
    found = solve_with(many(), "stages")
    assert found.bound is not None
    assert found.bound <= best <= seconds(found)


def test_lines_are_for_more_devices_than_shapes_and_not_for_very_many() -> None:
    def on(count: int) -> bool:
        return are_two_shapes(problem(chain_graph([WORK, WEIGHTS]), nodes(device(), per_node=1, count=count)))

    counts = (MOST_DEVICES, MOST_DEVICES + 1, MOST_TWO_SHAPE_DEVICES, MOST_TWO_SHAPE_DEVICES + 1)
    assert [on(count) for count in counts] == [False, True, True, False]


def as_two_shapes(given: Problem) -> TwoShapeSearch:
    costs = Costs(given.graph, given.cluster, given.settings)
    found = layouts(given, costs)
    views = {-1: costs} | {number: costs.under(layout) for number, layout in enumerate(found)}
    return TwoShapeSearch(
        problem=given, layouts=found, views={n: RangeClasses(given, view) for n, view in views.items()}
    )


def gpt() -> Problem:
    """A GPT whose ops may be cut, on two nodes of four."""
    machines = nodes(device(memory=2**22), per_node=4, count=2)
    return problem(gpt_graph(layers=2, rows=4), machines, rows=4)


@pytest.mark.in_turns
@pytest.mark.parametrize("make", [random_problem, unequal_problem, tapered_problem])
@pytest.mark.parametrize("seed", range(4))
def test_no_line_is_faster_than_its_bound(make, seed) -> None:  # type: ignore[no-untyped-def]
    assert_bounds_hold(replace(make(seed), pins=Pins()))


@pytest.mark.parametrize("make", [random_problem, unequal_problem, tapered_problem])
@pytest.mark.parametrize("seed", range(8))
def test_no_line_of_blocks_that_share_what_they_hold_is_faster_than_its_bound(make, seed) -> None:  # type: ignore[no-untyped-def]
    given = make(seed)
    assert_bounds_hold(replace(given, graph=with_ties(random.Random(seed), given.graph), pins=Pins()))


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", [19, 43, 100])
def test_no_line_of_like_blocks_that_share_what_they_hold_is_faster_than_its_bound(seed: int) -> None:
    assert_bounds_hold(tied_problem(seed))


def test_the_slowest_position_may_be_the_one_that_sends_nothing() -> None:
    light, slow = BlockSpec(output=1000), BlockSpec(flops=10**9)
    assert_bounds_hold(problem(chain_graph([light, light, slow]), cluster(*[device()] * 4, link=THIN), rows=8))


@pytest.mark.in_turns
@pytest.mark.parametrize("memory", [2**exponent for exponent in range(18, 23)])
def test_a_part_may_hold_less_where_it_does_not_recompute(memory: int) -> None:
    wide = BlockSpec(saved=10, output=25_000, parameters=10)
    machines = cluster(*[device(memory=memory, name="one")] * 2, device(memory=memory, name="other"))
    assert_bounds_hold(problem(chain_graph([wide] * 4, rows=4), machines, rows=4))


def test_no_line_of_cut_ops_is_faster_than_its_bound() -> None:
    assert_bounds_hold(gpt(), every=7)


def test_what_many_nodes_get_of_one_is_bounded_by_all_ports_of_that() -> None:
    """Four nodes with a device and a port each, then one of four devices and ports: no two messages share a port."""
    port = Link(name="port", latency_seconds=0.0, bandwidth=1e6)
    inside, wide = replace(port, bandwidth=1e12), replace(port, ports=4)
    leaf = Node(name="leaf", devices=((device(), 1),), link=inside, nic=port)
    hub = Node(name="hub", devices=((device(rate=1e11, name="other"), 4),), link=inside, nic=wide)
    star = Cluster(name="star", groups=((leaf, 4), (hub, 1)), levels=(Level(name="level", link=wide),))
    search = as_two_shapes(problem(chain_graph([BlockSpec(output=1000)] * 2), star, rows=4))
    asked = 0
    for _, (_, terms, _) in search.queue:
        for _, pipeline in search.bounds.pipelines(terms, math.inf):
            if terms.rows == 4 and {placed.submesh.replicas for placed in pipeline.placements} == {4}:
                bound = search.bounds.messages.between((pipeline.first,), (pipeline.second,), terms.rows)
                # A row of 1000 numbers of 4 bytes on and back.
                assert bound.item() == pytest.approx(2 * 4000 / 1e6)
                asked += 1
    assert asked


def assert_bounds_hold(given: Problem, every: int = 1) -> None:
    search = as_two_shapes(given)
    for _, (_, terms, _) in search.queue:
        for bound, pipeline in list(search.bounds.pipelines(terms, math.inf))[::every]:
            found = search.solved(terms, pipeline, math.inf)
            assert found is None or bound <= found.value * (1 + 1e-9)


@pytest.mark.in_turns
@pytest.mark.parametrize("make", [unequal_problem, tapered_problem])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_line_is_that_of_the_enumeration(make, seed, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    given = make(seed)
    monkeypatch.setattr(submesh, "MOST_DEVICES", 0)

    def only_two_shapes(*of: object) -> Iterator[Plan]:
        return (plan for plan in shaped_plans(*of) if is_line(plan))  # type: ignore[arg-type]

    monkeypatch.setattr(exhaustive, "shaped_plans", only_two_shapes)
    wanted, found = (answer(given, name) for name in ("exhaustive", "stages"))
    assert found == pytest.approx(wanted, rel=1e-9)


def answer(given: Problem, name: str) -> tuple[float, float]:
    """Seconds of a step and the bound, which must have met."""
    try:
        found = solve_with(given, name)
    except InfeasibleError:
        return math.inf, math.inf
    assert found.bound is not None
    return seconds(found), found.bound


def is_line(plan: Plan) -> bool:
    """Whether a plan is of two parts, and each fills a range of devices that a pipeline may have."""
    grounds = [[device for (device,) in units] for units in group_classes(plan.cluster, 1)]

    def look(stage: Stage) -> tuple[int, int, int | None]:
        return next(i for i, own in enumerate(grounds) if stage.devices[0] in own), stage.replicas, stage.layout

    parts = [(key, [d for stage in run for d in stage.devices]) for key, run in groupby(plan.stages, look)]
    if len(parts) != 2:
        return False
    ((first, _, _), own), ((second, _, _), its) = parts
    if first != second:
        return fills(plan, grounds[first], own) and fills(plan, grounds[second], its)
    node = in_a_node(plan, grounds[first])
    split = any(few(count) or (count % node == 0 and few(count // node)) for count in (len(own), len(its)))
    return own == grounds[first][: len(own)] and fills(plan, grounds[first], own + its) and split


def fills(plan: Plan, ground: list[int], used: list[int]) -> bool:
    """Whether the devices used are all of a ground, or its first 1, 2, 4, ... nodes."""
    node = in_a_node(plan, ground)
    whole = len(used) == len(ground) or (len(used) % node == 0 and few(len(used) // node))
    return whole and used == ground[: len(used)]


def in_a_node(plan: Plan, ground: list[int]) -> int:
    return sum(plan.cluster.node_of[device] == plan.cluster.node_of[ground[0]] for device in ground)


def few(count: int) -> bool:
    return count & (count - 1) == 0
