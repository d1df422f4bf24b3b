"""Stages that are a graph: their order, what it keeps in flight, and the estimate beside the simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import placer
from clusters import INSIDE, SLOW, cluster
from graphs import BlockSpec, branching_graph, branching_graphs, chain_graph
from pipeline_plans import pipeline_plan
from placer.cluster.cluster import Link
from placer.costs.timing.step import StageCost, waits_between_turns
from placer.errors import UsageError
from placer.graph import Graph
from placer.legality import check
from placer.plans.branched import branched_order
from placer.plans.order import plan_actions
from placer.plans.plan import Plan, ScheduleName, Stage
from placer.plans.schedule import LOOPING, actions, text, timetable, violations
from placer.plans.stage_graph import StageGraph, chain, of_reads
from placer.plans.transfers import is_chain, stage_graph

CHAINED: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
TOWERS = ((), (0,), (), (2,), (1, 3))


@st.composite
def stage_graphs(draw: st.DrawFn) -> StageGraph:
    """Any graph of up to 8 stages on up to 4 positions, with or without gradients along its edges."""
    count = draw(st.integers(1, 8))
    at = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    names = sorted(set(at))
    pairs = [(s, t) for t in range(count) for s in range(t)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    reads = [(source, target, draw(st.booleans())) for source, target in chosen]
    work = draw(st.lists(st.floats(0.125, 8), min_size=count, max_size=count))
    return of_reads([names.index(position) for position in at], reads, work)


def branched_plan(graph: Graph, places: tuple[int, ...], microbatches: tuple[int, ...] = (8,)) -> Plan:
    """Every block a stage, on the device that `places` says."""
    names = {place: index for index, place in enumerate(dict.fromkeys(places))}
    plan = pipeline_plan(
        graph, microbatches=microbatches, machines=cluster(per_node=len(names), device=SLOW, inside=INSIDE)
    )
    stages = tuple(Stage(first=i, last=i + 1, devices=(names[place],)) for i, place in enumerate(places))
    return replace(plan, stages=stages, schedule="branched" if len(stages) > 1 else "1f1b")


@given(stage_graphs(), st.integers(1, 9))
def test_every_graph_has_an_order_that_runs_to_its_end(graph: StageGraph, microbatches: int) -> None:
    assert violations(branched_order(graph, microbatches).actions, graph, microbatches) == ()


@given(stage_graphs(), st.integers(1, 9))
def test_an_order_knows_the_times_of_its_timetable(graph: StageGraph, microbatches: int) -> None:
    order = branched_order(graph, microbatches)
    assert order.times == timetable(order.actions, graph)


@given(stage_graphs(), st.integers(1, 9))
def test_a_stage_keeps_no_more_in_flight_than_a_pipeline_as_deep_as_what_is_behind_it(
    graph: StageGraph, microbatches: int
) -> None:
    for line in branched_order(graph, microbatches).actions:
        alive = dict.fromkeys({action.stage for action in line}, 0)
        for action in line:
            alive[action.stage] += 1 if action.kind == "F" else -1
            assert alive[action.stage] <= graph.depth[action.stage] + 1


@pytest.mark.parametrize(("positions", "microbatches"), [(1, 3), (2, 5), (4, 9), (5, 2)])
def test_a_chain_gets_the_order_of_1f1b(positions: int, microbatches: int) -> None:
    assert text(branched_order(chain(positions), microbatches).actions) == text(
        actions("1f1b", positions, positions, microbatches)
    )


def test_towers_on_two_devices_compute_at_the_same_time() -> None:
    graph = branching_graph([BlockSpec()] * 5, TOWERS)
    plan = branched_plan(graph, (0, 0, 1, 1, 1))
    assert text(plan_actions(plan)) == "0F0 1F0 1B0 0B0\n2F0 3F0 4F0 4B0 3B0 2B0"
    times = timetable(plan_actions(plan), stage_graph(plan))
    assert max(end for _, end in times.values()) == pytest.approx(9 * stage_graph(plan).work[0])


def test_the_order_of_a_graph_is_asked_of_a_plan() -> None:
    with pytest.raises(UsageError, match="branched orders the stages of a plan, by what they read of each other"):
        actions("branched", 2, 3, 1)


@pytest.mark.in_turns
@settings(max_examples=60)
@given(branching_graphs(), st.data())
def test_a_plan_of_branches_is_legal_and_estimated_as_it_is_simulated(graph: Graph, data: st.DataObject) -> None:
    count = len(graph.blocks)
    places = tuple(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    microbatches = data.draw(st.sampled_from([(8,), (4, 4), (3, 3, 2), (2, 2, 2, 2), (1, 5, 2)]))
    plan = branched_plan(graph, places, microbatches)
    assert check(plan) == ()
    estimated, simulated = placer.estimate(plan).step_seconds, placer.simulate(plan).ledger.step_seconds
    assert abs(estimated - simulated) <= 0.02 * simulated


def test_a_stage_between_does_not_delay_one_that_needs_nothing_of_it() -> None:
    graph = branching_graph([BlockSpec()] * 5, TOWERS)
    beside, behind = branched_plan(graph, (0, 0, 1, 1, 1)), branched_plan(graph, (0, 0, 0, 0, 0))
    seconds = [placer.estimate(plan).step_seconds for plan in (beside, behind)]
    assert seconds[0] < 0.75 * seconds[1]


@pytest.mark.in_turns
@settings(max_examples=40)
@given(branching_graphs(), st.data())
def test_a_pipeline_of_branches_is_estimated_as_it_is_simulated(graph: Graph, data: st.DataObject) -> None:
    """Stages in the order of the model wait for what they read only, under every schedule."""
    schedule, positions = data.draw(st.sampled_from(CHAINED)), data.draw(st.integers(2, 4))
    stages = positions * (2 if schedule in LOOPING else 1)
    assume(stages <= len(graph.blocks))
    inner = data.draw(st.permutations(range(1, len(graph.blocks))))[: stages - 1]
    cuts = pairwise([0, *sorted(inner), len(graph.blocks)])
    plan = branched_plan(graph, tuple(range(positions)), data.draw(st.sampled_from([(8,), (4, 4), (3, 3, 2)])))
    parts = (Stage(first=a, last=b, devices=(stage % positions,)) for stage, (a, b) in enumerate(cuts))
    plan = replace(plan, stages=tuple(parts), schedule=schedule)
    assume(not check(plan) and not is_chain(plan))
    estimated, simulated = placer.estimate(plan).step_seconds, placer.simulate(plan).ledger.step_seconds
    assert abs(estimated - simulated) <= 0.02 * simulated


@pytest.mark.in_turns
@settings(max_examples=60)
@given(branching_graphs(), st.data())
def test_messages_of_branches_wait_for_ports_and_for_nodes(graph: Graph, data: st.DataObject) -> None:
    """Links so slow that messages of a position, or those through a node, wait for each other."""
    count, replicas, kinds = len(graph.blocks), data.draw(st.integers(1, 2)), st.sampled_from([1e-6, 1e-4])
    places = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    names = {place: index for index, place in enumerate(dict.fromkeys(places))}
    inside, out = (
        Link(name="wire", latency_seconds=data.draw(kinds), bandwidth=10.0 ** data.draw(st.integers(7, 10)))
        for _ in range(2)
    )
    machines = cluster(nodes=4, per_node=2, device=SLOW, inside=inside, out=out)
    # Replicas that stand unlike are priced as one that waits for all that any of them waits for.
    standing = data.draw(st.permutations(range(8))) if replicas == 1 else tuple(range(8))
    devices = [tuple(standing[replicas * at : replicas * (at + 1)]) for at in range(len(names))]
    microbatches = data.draw(st.sampled_from([(8,), (4, 4), (4, 4, 2), (2, 2, 2, 2)]))
    plan = pipeline_plan(graph, microbatches=microbatches, machines=machines)
    stages = tuple(Stage(first=i, last=i + 1, devices=devices[names[place]]) for i, place in enumerate(places))
    plan = replace(plan, stages=stages, schedule="branched" if len(stages) > 1 else "1f1b")
    assume(not check(plan))
    estimated, simulated = placer.estimate(plan).step_seconds, placer.simulate(plan).ledger.step_seconds
    assert abs(estimated - simulated) <= 0.02 * simulated


@pytest.mark.in_turns
@settings(max_examples=40)
@given(st.data())
def test_what_skips_stages_waits_for_ways_too(data: st.DataObject) -> None:
    """A value read three stages on goes there besides, through ports and nodes that others need: the estimate of a
    chain counts it no less than the simulator, and hardly more."""
    positions, latency = data.draw(st.integers(3, 5)), data.draw(st.sampled_from([1e-6, 1e-4]))
    wire = Link(name="wire", latency_seconds=latency, bandwidth=10.0 ** data.draw(st.integers(8, 10)))
    spec = BlockSpec(flops=data.draw(st.integers(10**7, 10**8)), output=10 ** data.draw(st.integers(1, 5)))
    pairs = [(s, t) for t in range(positions) for s in range(t - 1)]
    skips = data.draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=3, unique=True))
    plan = pipeline_plan(
        chain_graph([spec] * positions, skips=sorted(skips)), positions=positions,
        microbatches=data.draw(st.sampled_from([1, 2, 4, 8])),
        machines=cluster(nodes=3, per_node=2, device=SLOW, inside=wire, out=wire),
        schedule=data.draw(st.sampled_from([name for name in CHAINED if name not in LOOPING])),
    )  # fmt: skip
    assert is_chain(plan)
    estimated, simulated = placer.estimate(plan).step_seconds, placer.simulate(plan).ledger.step_seconds
    assert 0.98 * simulated <= estimated <= 1.06 * simulated


@pytest.mark.in_turns
@settings(max_examples=25)
@given(st.data())
def test_turns_that_differ_wait_for_each_other_in_the_estimate(data: st.DataObject) -> None:
    """Positions whose stages are longer in one turn and shorter in another, as recomputation makes them."""
    positions, turns = data.draw(st.sampled_from([(2, 2), (3, 2), (4, 2), (4, 3), (8, 3)]))
    flops = data.draw(st.lists(st.sampled_from([4, 5, 6, 8]), min_size=positions * turns, max_size=positions * turns))
    specs = [BlockSpec(flops=size * 10**7, output=10) for size in flops]
    plan = pipeline_plan(
        chain_graph(specs), positions=positions, turns=turns, schedule="interleaved",
        microbatches=data.draw(st.sampled_from([2, 4, 6])) * positions,
    )  # fmt: skip
    estimated, simulated = placer.estimate(plan).step_seconds, placer.simulate(plan).ledger.step_seconds
    assert 0.98 * simulated <= estimated <= 1.12 * simulated


@pytest.mark.parametrize(
    ("work", "last", "waits"), [((8, 8, 4, 4), None, True), ((6, 6, 6, 6), 1, True), ((6, 6, 6, 6), None, False)]
)
def test_longer_turns_and_a_small_last_microbatch_are_waited_for(
    work: tuple[int, ...], last: int | None, waits: bool
) -> None:
    """Two microbatches at two positions; a first turn that is longer at both, or a second microbatch that is short."""
    stages = [
        StageCost(forward=one, backward=2 * one, last_forward=last or one, last_backward=2 * (last or one))
        for one in work
    ]
    assert (waits_between_turns(stages, 2, 2) > 1e-9) == waits


def test_a_plan_of_branches_is_the_same_when_it_is_read_back() -> None:
    plan = branched_plan(branching_graph([BlockSpec()] * 5, TOWERS), (0, 0, 1, 1, 1), (4, 4))
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert plan_actions(again) == plan_actions(plan)
