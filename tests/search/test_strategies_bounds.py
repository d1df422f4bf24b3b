"""Lower bounds hold: no stage, and no plan, is estimated below what they say of the blocks in it."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import BlockSpec, chain_graph
from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with, stage_costs
from placer.costs.timing.step import StageCost, Terms, terms
from placer.graph import Affine, BlockClass, Op
from placer.plans.plan import ScheduleName, Sharding
from placer.plans.settings import RunSettings
from placer.search.problem import Problem
from placer.strategies.inter_op.bounds.by_bound import by_bound
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.refined import RefinedBounds
from placer.strategies.inter_op.bounds.schedule import Amount, LowerBound, ScheduleTerms
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.space.outline import Outline, outlines, plan_of, recomputes
from problems import cluster, device, problem

ROUNDING = 1 + 1e-9
# Of a difference of larger numbers.
TINY = 1e-9
SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
durations = st.floats(0, 1e3, allow_subnormal=False)


@st.composite
def blocks(draw: st.DrawFn) -> StageCost:
    """Seconds of one block: forward and backward, weight gradients a part of the latter, the last microbatch's."""
    inner, weight = draw(durations), draw(durations)
    return StageCost(
        forward=draw(durations), backward=inner + weight, weight=weight, last_forward=draw(durations),
        last_backward=draw(durations),
    )  # fmt: skip


@dataclass(frozen=True)
class AtPositions:
    """A schedule's terms at a number of positions."""

    positions: int
    schedule: ScheduleTerms

    def terms(self, stage: StageCost) -> Terms:
        own = self.schedule
        return terms(stage, own.schedule, positions=self.positions, turns=own.turns, microbatches=own.count)

    def bound(self, full: Amount, last: Amount) -> LowerBound[float]:
        return self.schedule.bound(self.positions, full, last)


@st.composite
def schedules_at(draw: st.DrawFn, schedule: ScheduleName) -> AtPositions:
    looped = schedule == "interleaved"
    return AtPositions(
        positions=draw(st.integers(2 if looped else 1, 5)),
        schedule=ScheduleTerms(
            rows=1, schedule=schedule, turns=draw(st.integers(2, 4)) if looped else 1, batch=draw(st.integers(1, 12))
        ),
    )  # fmt: skip


EXTRAS = st.builds(
    StageCost, forward=durations, backward=durations, last_forward=durations, last_backward=durations,
    send_forward=durations, send_backward=durations, accumulate=durations,
)  # fmt: skip


def together(parts: list[StageCost], extra: StageCost) -> StageCost:
    """A stage of these blocks, with what only stages have: messages, recompute, adding to gradients."""
    summed = {name: sum(getattr(part, name) for part in (*parts, extra)) for name in StageCost.__dataclass_fields__}
    return StageCost(**summed)


def amount(part: StageCost) -> Amount:
    inner = part.backward - part.weight
    return Amount(part.forward, part.backward, part.weight, inner, min(part.weight, part.forward, inner))


def last_amount(part: StageCost) -> Amount:
    return Amount(part.last_forward, part.last_backward)


def total(amounts: list[Amount]) -> Amount:
    found = Amount()
    for one in amounts:
        found = found.plus(one)
    return found


@pytest.mark.in_turns
@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=150)
@given(data=st.data())
def test_floors_of_blocks_are_never_above_the_terms_of_the_stages_they_lie_in(
    schedule: ScheduleName, data: st.DataObject
) -> None:
    at = data.draw(schedules_at(schedule))
    stages = data.draw(st.lists(st.lists(blocks(), min_size=1, max_size=3), min_size=1, max_size=4))
    found = [at.terms(together(parts, data.draw(EXTRAS))) for parts in stages]
    every = [part for parts in stages for part in parts]
    least = at.bound(total([amount(part) for part in every]), total([last_amount(part) for part in every]))
    assert least.fill <= sum(part.fill for part in found) * ROUNDING
    assert least.steady <= sum(part.steady for part in found) * ROUNDING
    if at.schedule.turns > 1:
        assert (at.schedule.turns - 1) * least.fill <= sum(part.rounds for part in found) * ROUNDING
        assert at.schedule.turn(least) <= sum(part.turn for part in found) * ROUNDING + TINY
    for parts, stage in zip(stages, found, strict=True):
        for part in parts:
            assert at.bound(amount(part), last_amount(part)).steady <= stage.steady * ROUNDING


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@settings(max_examples=50)
@given(data=st.data())
def test_the_floor_of_a_stage_without_messages_is_its_terms(schedule: ScheduleName, data: st.DataObject) -> None:
    at, stage = data.draw(schedules_at(schedule)), data.draw(blocks())
    found, wanted = at.bound(amount(stage), last_amount(stage)), at.terms(stage)
    assert found.fill == pytest.approx(wanted.fill)
    assert found.steady == pytest.approx(wanted.steady)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=50)
@given(data=st.data())
def test_floors_of_many_positions_are_those_of_each(schedule: ScheduleName, data: st.DataObject) -> None:
    at, stage = data.draw(schedules_at(schedule)), data.draw(blocks())
    positions = np.arange(2 if at.schedule.turns > 1 else 1, 9)
    least = at.schedule.bound(positions, amount(stage), last_amount(stage))
    for p, filling, seconds in zip(positions, *(np.broadcast_to(each, positions.shape) for each in least), strict=True):
        one = at.schedule.bound(int(p), amount(stage), last_amount(stage))
        assert filling == pytest.approx(one.fill)
        assert seconds == pytest.approx(one.steady)


def mixed_problem(seed: int) -> Problem:
    """Products and as much memory traffic, on devices of which one kind is fast at the former, one at the latter."""
    rng = random.Random(seed)
    specs = [BlockSpec(flops=10**8, traffic=10**3, output=10, parameters=10)] * rng.randint(2, 4)
    graph = chain_graph(specs, rows=4)
    classes = tuple(with_traffic(kind, int(10 ** rng.uniform(6, 7.5))) for kind in graph.classes)
    rated, wide = device(rate=1e13, bandwidth=1e10, name="rated"), device(rate=1e11, bandwidth=1e12, name="wide")
    chips = [rng.choice((rated, wide)) for _ in range(rng.randint(2, 4))]
    fixed = RunSettings(recompute=rng.choice(("none", "full")), optimizer="sgd", clip_norm=None)
    made = replace(graph, classes=classes)
    return problem(made, cluster(*chips), settings=fixed, rows=rng.randint(2, 6), seed=seed)


def with_traffic(kind: BlockClass, size: int) -> BlockClass:
    """A block with one more op that moves `size` bytes per row each way and computes nothing."""
    if not kind.ops:  # the prologue
        return kind
    moved = Affine(0, size)
    more = Op(
        name="more", target="test.more", kind="pointwise", inputs=("o0.0",), outputs=kind.ops[0].outputs,
        read_bytes=moved, written_bytes=moved, backward_read_bytes=moved, backward_written_bytes=moved,
    )  # fmt: skip
    return replace(kind, ops=(*kind.ops, more), outputs=("o1.0",))


@pytest.mark.parametrize("seed", range(12))
def test_no_stage_of_any_cut_is_below_the_floors_of_its_blocks_on_devices_that_cross(seed: int) -> None:
    given_problem = mixed_problem(seed)
    costs = Costs(given_problem.graph, given_problem.cluster, given_problem.settings)
    bounds = OutlineBounds(given_problem, RangeClasses(given_problem, costs))
    (recompute,) = recomputes(given_problem)
    inner = range(1, len(given_problem.graph.blocks))
    for made in outlines(given_problem):
        at, places = AtPositions(made.positions, ScheduleTerms.of(made)), PositionClasses(given_problem, costs, made)
        floors = bounds.rest(made, places)
        coarse = bounds.steps(np.array([made.positions]), made.replicas, at.schedule)[0]
        least = max(coarse, RefinedBounds(bounds).step(made, places))
        for cuts in itertools.combinations(inner, made.stages - 1):
            plan = plan_of(given_problem, made, cuts, (recompute,) * made.stages)
            assert least <= estimate_with(costs, plan).step_seconds * ROUNDING, f"{made} cut at {cuts}"
            found = [at.terms(stage) for stage in stage_costs(costs, plan)]
            for index, first in enumerate((0, *cuts)):
                assert floors[first].fill <= sum(part.fill for part in found[index:]) * ROUNDING
                assert floors[first].steady <= sum(part.steady for part in found[index:]) * ROUNDING


@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_an_update_on_slow_memory_with_cheap_launches_is_not_below_its_bound(sharding: Sharding) -> None:
    specs = [BlockSpec(flops=10**4, parameters=100, traffic=10)] * 3
    quiet = replace(device(bandwidth=1e10, name="quiet"), launch_seconds=0.0)
    busy = replace(device(bandwidth=1e12, name="busy"), launch_seconds=1e-4)
    given_problem = problem(chain_graph(specs, rows=4), cluster(busy, quiet, quiet), rows=4)
    costs = given_problem.costs
    bounds = OutlineBounds(given_problem, RangeClasses(given_problem, costs))
    made = Outline(
        positions=1, replicas=2, virtual=1, rows=4, microbatch=4, schedule="1f1b", sharding=sharding,
        device_order=(1, 2),
    )  # fmt: skip
    plan, places = plan_of(given_problem, made, (), (False,)), PositionClasses(given_problem, costs, made)
    seconds = estimate_with(costs, plan).step_seconds * ROUNDING
    refined = RefinedBounds(bounds)
    assert max(refined.quick(made, places), refined.step(made, places)) <= seconds


@pytest.mark.parametrize("seed", range(12))
def test_the_search_is_offered_every_outline_of_the_space_its_bounds_ascending(seed: int) -> None:
    given_problem = mixed_problem(seed)
    costs = Costs(given_problem.graph, given_problem.cluster, given_problem.settings)
    offered = list(by_bound({-1: OutlineBounds(given_problem, RangeClasses(given_problem, costs))}).outlines)
    assert sorted(outline for _, outline in offered) == sorted(outlines(given_problem))
    assert [seconds for seconds, _ in offered] == sorted(seconds for seconds, _ in offered)
