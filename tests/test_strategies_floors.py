"""Floors hold: no stage, and no plan, is estimated below what the floors say of the blocks in it."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import gpt_graph
from placer.cluster import Cluster
from placer.costs import Costs
from placer.plans import ScheduleName
from placer.search import Problem
from placer.settings import RunSettings
from placer.steptime import StageCost, Terms, terms
from placer.strategies.floors import Amount, Bounds, Floor, Rhythm
from placer.strategies.runs import Runs
from placer.strategies.space import outlines, plan_of, recomputes
from problems import cluster, device, problem

ROUNDING = 1 + 1e-9
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
class Pace:
    """A rhythm at a number of positions."""

    positions: int
    rhythm: Rhythm

    def terms(self, stage: StageCost) -> Terms:
        pace = self.rhythm
        return terms(stage, pace.schedule, positions=self.positions, turns=pace.virtual, microbatches=pace.count)

    def floor(self, full: Amount, last: Amount) -> Floor:
        return self.rhythm.floor(self.positions, full, last)


@st.composite
def paces(draw: st.DrawFn, schedule: ScheduleName) -> Pace:
    looped = schedule == "interleaved"
    return Pace(
        positions=draw(st.integers(2 if looped else 1, 5)),
        rhythm=Rhythm(
            schedule=schedule, virtual=draw(st.integers(2, 4)) if looped else 1, count=draw(st.integers(1, 12))
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


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_floors_of_blocks_are_never_above_the_terms_of_the_stages_they_lie_in(
    schedule: ScheduleName, data: st.DataObject
) -> None:
    pace = data.draw(paces(schedule))
    stages = data.draw(st.lists(st.lists(blocks(), min_size=1, max_size=3), min_size=1, max_size=4))
    found = [pace.terms(together(parts, data.draw(EXTRAS))) for parts in stages]
    every = [part for parts in stages for part in parts]
    least = pace.floor(total([amount(part) for part in every]), total([last_amount(part) for part in every]))
    assert least.fill <= sum(part.fill for part in found) * ROUNDING
    assert least.steady <= sum(part.steady for part in found) * ROUNDING
    for parts, stage in zip(stages, found, strict=True):
        for part in parts:
            assert pace.floor(amount(part), last_amount(part)).steady <= stage.steady * ROUNDING


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_the_floor_of_a_stage_without_messages_is_its_terms(schedule: ScheduleName, data: st.DataObject) -> None:
    pace, stage = data.draw(paces(schedule)), data.draw(blocks())
    found, wanted = pace.floor(amount(stage), last_amount(stage)), pace.terms(stage)
    assert found.fill == pytest.approx(wanted.fill)
    assert found.steady == pytest.approx(wanted.steady)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_floors_of_many_positions_are_those_of_each(schedule: ScheduleName, data: st.DataObject) -> None:
    pace, stage = data.draw(paces(schedule)), data.draw(blocks())
    positions = np.arange(2, 9)
    fill, steady = pace.rhythm.floors(positions, amount(stage), last_amount(stage))
    for p, seconds in zip(positions, steady, strict=True):
        one = pace.rhythm.floor(int(p), amount(stage), last_amount(stage))
        assert (fill, seconds) == (pytest.approx(one.fill), pytest.approx(one.steady))


def crossing(rng: random.Random) -> Cluster:
    """Two kinds of device of which one computes faster and the other has the faster memory."""
    rated, wide = device(rate=1e13, bandwidth=1e10, name="rated"), device(rate=1e11, bandwidth=1e12, name="wide")
    return cluster(*(rng.choice((rated, wide)) for _ in range(rng.randint(2, 4))))


def mixed_problem(seed: int) -> Problem:
    """A model whose ops are bound by the one in some blocks and by the other elsewhere."""
    rng = random.Random(seed)
    graph = gpt_graph(layers=rng.randint(1, 2), hidden=rng.choice((32, 256)), sequence=rng.choice((16, 128)), rows=4)
    fixed = RunSettings(recompute=rng.choice(("none", "full")), attention=rng.choice(("flash", "eager")))
    return problem(graph, crossing(rng), settings=fixed, rows=rng.randint(2, 4), seed=seed)


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_of_an_outline_is_estimated_below_its_bound_on_devices_that_cross(seed: int) -> None:
    given_problem = mixed_problem(seed)
    costs = Costs(given_problem.graph, given_problem.cluster, given_problem.settings)
    bounds = Bounds(given_problem, Runs(given_problem, costs))
    (recompute,) = recomputes(given_problem)
    inner = range(1, len(given_problem.graph.blocks))
    for made in outlines(given_problem):
        least = bounds.step(made)
        for cuts in itertools.combinations(inner, made.stages - 1):
            plan = plan_of(given_problem, made, cuts, (recompute,) * made.stages)
            assert least <= costs.estimate(plan).step_seconds * ROUNDING, f"{made} cut at {cuts}"
