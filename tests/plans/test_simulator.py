"""The played step: as long as the closed form says, never shorter than its longest chain or its busiest resource."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters import FAST, INSIDE, SLOW, cluster
from graphs import BlockSpec, block_specs, chain_graph, chain_graphs, gpt_graph
from pipeline_plans import chain, pipeline_plan
from placer.cluster.cluster import Cluster, Link, Node
from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate
from placer.plans.ledger import Seconds
from placer.plans.plan import Plan, ScheduleName, Sharding
from placer.plans.schedule import NAMES
from placer.plans.settings import RunSettings
from placer.program.instructions import Collective, Compute, Message, Program
from placer.program.lowering import lower
from placer.simulator.durations import Durations
from placer.simulator.simulation import column_classes, simulate
from placer.simulator.timeline import Timeline

# The design's bound on closed form against simulation, for homogeneous pipelines.
AGREEMENT = 0.02


@st.composite
def homogeneous(draw: st.DrawFn, name: ScheduleName) -> Plan:
    """Equal blocks, equally many per stage, equal microbatches, equal devices; messages short beside computations.

    Without recompute: the block that makes the loss is never recomputed, which leaves the last stage less to do.
    """
    positions = draw(st.integers(1, 4))
    turns = draw(st.integers(2, 3)) if name == "interleaved" else 1
    replicas = draw(st.integers(1, 2))
    spec = BlockSpec(
        flops=draw(st.integers(10**7, 10**8)),
        parameters=10 ** draw(st.integers(1, 6)),
        output=draw(st.integers(1, 1_000)),
    )
    return pipeline_plan(
        chain_graph([spec] * (positions * turns * draw(st.integers(1, 2)))),
        positions=positions,
        turns=turns,
        replicas=replicas,
        microbatches=draw(st.integers(1, 12)),
        schedule=name,
    )


@st.composite
def any_plans(draw: st.DrawFn) -> Plan:
    """Random chains, cuts, microbatches, slow and fast links, nodes of two devices."""
    graph = draw(chain_graphs(least=4, most=8))
    name: ScheduleName = draw(st.sampled_from(NAMES))
    positions, replicas = draw(st.integers(1, 2 if name == "interleaved" else 4)), draw(st.integers(1, 2))
    slow = Link(
        name="wire", latency_seconds=draw(st.sampled_from([1e-6, 1e-3])), bandwidth=10.0 ** draw(st.integers(6, 11))
    )
    machines = cluster(nodes=4, per_node=2, device=SLOW, inside=slow, out=slow)
    return pipeline_plan(
        graph,
        positions=positions,
        turns=2 if name == "interleaved" else 1,
        replicas=replicas,
        # One row may be too few for both replicas.
        microbatches=[replicas, *(draw(st.integers(1, 6)) for _ in range(draw(st.integers(0, 4))))],
        schedule=name,
        machines=machines,
    )


def longest_chain(plan: Plan, programs: tuple[Program, ...]) -> float:
    """Seconds of the longest path through the programs by their dependencies alone: nothing shares anything."""
    durations = Durations(plan, Costs(plan.graph, plan.cluster, plan.settings))
    order: networkx.DiGraph[tuple[object, ...]] = networkx.DiGraph()
    for program in programs:
        previous: tuple[object, ...] = ("start",)
        arriving: list[tuple[tuple[int, int, str], tuple[object, ...], float]] = []
        for index, entry in enumerate(program.instructions):
            node = (program.rank, index)
            if isinstance(entry, Compute):
                order.add_edge(previous, node, seconds=sum(part.seconds for part in durations.compute(program, entry)))
                reads = [
                    m for m in arriving if m[0] == (entry.action.stage, entry.action.microbatch, entry.action.kind)
                ]
                for _, message, seconds in reads:
                    own = order.edges[previous, node]["seconds"]
                    order.add_edge(message, ("arrived", *message), seconds=seconds)
                    order.add_edge(("arrived", *message), node, seconds=own)
                previous = node
            elif isinstance(entry, Message):
                ends = (program.rank, entry.peer) if entry.direction == "send" else (entry.peer, program.rank)
                key = ("message", *ends, entry.tag)
                if entry.direction == "send":
                    order.add_edge(previous, key, seconds=0.0)
                else:
                    wire = durations.wire(entry, *(plan.ranks[rank] for rank in ends))
                    kinds = "F" if entry.kind == "activation" else "BI"
                    arriving += [
                        ((entry.target_stage, entry.microbatch, kind), key, wire.latency + wire.occupied)
                        for kind in kinds
                    ]
    return float(networkx.dag_longest_path_length(order, weight="seconds"))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(data=st.data())
def test_closed_form_and_simulation_agree_on_homogeneous_pipelines(name: ScheduleName, data: st.DataObject) -> None:
    plan = data.draw(homogeneous(name))
    played, closed = simulate(plan).ledger.step_seconds, estimate(plan).step_seconds
    assert abs(closed - played) <= AGREEMENT * played


@pytest.mark.parametrize("sharding", ["none", "parameters"])
def test_a_replica_without_rows_takes_as_long_in_the_closed_form_as_when_played(sharding: Sharding) -> None:
    """It repeats a row beside the others, who wait for it: here the slow one."""
    slow = replace(FAST, name="slow", rates=(("float32", 1e12),))
    node = Node(name="node", devices=((FAST, 1), (slow, 1)), link=INSIDE, nic=INSIDE)
    plan = pipeline_plan(
        chain(), replicas=2, microbatches=(2, 1), sharding=sharding, settings=RunSettings(),
        machines=Cluster(name="two kinds", groups=((node, 1),)),
    )  # fmt: skip
    closed, played = estimate(plan).seconds, simulate(plan).ledger.seconds
    assert closed.forward == pytest.approx(played.forward) and closed.backward == pytest.approx(played.backward)


@pytest.mark.parametrize("turns", [2, 3])
def test_a_microbatch_comes_round_after_all_positions_not_after_as_many_as_the_slowest(turns: int) -> None:
    specs = [BlockSpec(flops=flops, output=1) for flops in (10**7, 10**8, 2 * 10**7, 10**7)]
    plan = pipeline_plan(
        chain_graph(specs * turns), positions=4, turns=turns, microbatches=(2,), schedule="interleaved",
        settings=RunSettings(),
    )  # fmt: skip
    assert estimate(plan).step_seconds == pytest.approx(simulate(plan).ledger.step_seconds, rel=AGREEMENT)


def test_all_forwards_then_all_backwards_each_wait_for_the_position_that_is_slowest_at_them() -> None:
    """The first recomputes, the last one has the slowest forward."""
    specs = [BlockSpec(flops=10**8, output=10, inner=1), BlockSpec(flops=10**8, output=10), BlockSpec(flops=13 * 10**7)]
    plan = pipeline_plan(
        chain_graph(specs), positions=3, microbatches=8, schedule="gpipe", settings=RunSettings()
    )  # fmt: skip
    plan = replace(plan, stages=(replace(plan.stages[0], recompute=True), *plan.stages[1:]))
    assert estimate(plan).step_seconds == pytest.approx(simulate(plan).ledger.step_seconds, rel=AGREEMENT)


def test_a_last_microbatch_that_is_small_lets_turns_wait_for_each_other() -> None:
    plan = pipeline_plan(
        chain_graph([BlockSpec(flops=10**7, output=1), *[BlockSpec(flops=10**8, output=1)] * 3]),
        positions=2, turns=2, microbatches=(8, 1), schedule="interleaved", settings=RunSettings(),
    )  # fmt: skip
    assert estimate(plan).step_seconds >= simulate(plan).ledger.step_seconds * (1 - AGREEMENT)


@settings(max_examples=15)
@given(any_plans())
def test_no_step_is_shorter_than_its_longest_chain(plan: Plan) -> None:
    classes = column_classes(plan)
    chain_seconds = longest_chain(plan, lower(plan, columns=[members[0] for members in classes]))
    assert simulate(plan).step_seconds >= chain_seconds * (1 - 1e-9)


@settings(max_examples=15)
@given(any_plans())
def test_no_step_is_shorter_than_any_resource_is_busy_and_none_does_two_things_at_once(plan: Plan) -> None:
    timeline = simulate(plan)
    for rank in timeline.ranks:
        for lane in ("compute", "send", "receive", "collective"):
            slices = timeline.lane(rank, lane)
            assert timeline.busy_seconds(rank, lane) <= timeline.step_seconds * (1 + 1e-9)
            ordered = sorted(slices, key=lambda entry: (entry.start, entry.end))
            assert all(a.end <= b.start + 1e-15 for a, b in pairwise(ordered))


@settings(max_examples=15)
@given(any_plans())
def test_the_critical_path_begins_at_the_start_ends_at_the_end_and_never_goes_back(plan: Plan) -> None:
    timeline = simulate(plan)
    path = timeline.critical_path
    assert path[0].start == 0.0
    assert path[-1].end == timeline.step_seconds
    assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(path))


@settings(max_examples=15)
@given(any_plans())
def test_the_ledger_adds_up_to_the_step(plan: Plan) -> None:
    ledger = simulate(plan).ledger
    assert ledger.seconds.total == pytest.approx(ledger.step_seconds)
    assert min(getattr(ledger.seconds, name) for name in Seconds.__dataclass_fields__) >= 0
    assert ledger.memory == estimate(plan).memory


@settings(max_examples=12)
@given(any_plans())
def test_every_computation_and_message_of_the_programs_is_drawn_once(plan: Plan) -> None:
    timeline = simulate(plan)
    programs = lower(plan, columns=[members[0] for members in column_classes(plan)])
    drawn = Counter((entry.rank, entry.lane) for entry in timeline.slices)
    for program in programs:
        assert drawn[program.rank, "compute"] == 1 + sum(isinstance(e, Compute) for e in program.instructions)
        sends = [e for e in program.instructions if isinstance(e, Message) and e.direction == "send"]
        assert drawn[program.rank, "send"] == len(sends)
        assert drawn[program.rank, "collective"] == sum(isinstance(e, Collective) for e in program.instructions)


@settings(max_examples=10)
@given(any_plans(), st.integers(2, 10))
def test_more_bandwidth_never_slows_a_step(plan: Plan, factor: int) -> None:
    ((node, count),) = plan.cluster.groups
    faster = replace(node.link, bandwidth=node.link.bandwidth * factor)
    (level,) = plan.cluster.levels
    quick = replace(
        plan.cluster,
        groups=((replace(node, link=faster, nic=faster), count),),
        levels=(replace(level, link=faster),),
    )
    # Ways are given in order of time: an earlier message may take one from a more urgent one, hence the tolerance.
    assert simulate(replace(plan, cluster=quick)).step_seconds <= simulate(plan).step_seconds * 1.02


@settings(max_examples=10)
@given(st.lists(block_specs(), min_size=2, max_size=4), st.integers(1, 6))
def test_one_device_takes_exactly_the_sum_of_its_work(specs: list[BlockSpec], microbatches: int) -> None:
    plan = pipeline_plan(chain_graph(specs), microbatches=microbatches)
    assert simulate(plan).step_seconds == pytest.approx(estimate(plan).step_seconds, rel=1e-9)


def test_messages_through_one_nic_wait_for_each_other() -> None:
    wire = Link(name="wire", latency_seconds=0.0, bandwidth=1e6)
    free = Link(name="free", latency_seconds=0.0, bandwidth=1e12)
    # Blocks 0 and 1 lie on one node and both send to block 2's node: 8 kB each over 1 MB/s.
    graph = chain_graph([BlockSpec(output=1_000, flops=1)] * 3, skips=[(0, 2)])
    plan = pipeline_plan(graph, positions=3, machines=cluster(nodes=2, per_node=2, device=SLOW, inside=free, out=wire))
    sent = sorted(
        (s for s in simulate(plan).slices if s.lane == "send" and s.name.endswith(">2 m0")), key=lambda s: s.start
    )
    assert len(sent) == 2
    assert sent[0].rank != sent[1].rank
    assert sent[0].start < sent[1].start
    assert sent[1].start >= sent[0].end


def test_overlapped_reduction_is_faster_than_reduction_afterwards() -> None:
    graph = chain_graph([BlockSpec(parameters=200_000, flops=20_000_000)] * 8)
    how = {"replicas": 2, "machines": cluster(per_node=2, device=SLOW)}
    beside = replace(pipeline_plan(graph, **how), bucket_bytes=800_000)  # type: ignore[arg-type]
    after = replace(beside, settings=replace(beside.settings, overlap=False))
    assert simulate(beside).step_seconds < simulate(after).step_seconds
    assert simulate(beside).ledger.seconds.reduction < simulate(after).ledger.seconds.reduction


def test_zero_bubble_beats_1f1b_and_1f1b_equals_gpipe_where_messages_are_free() -> None:
    steps = {
        name: simulate(pipeline_plan(chain(), positions=4, microbatches=8, schedule=name)).step_seconds
        for name in ("zero-bubble", "1f1b", "gpipe")
    }
    assert steps["zero-bubble"] < steps["1f1b"]
    assert steps["1f1b"] == pytest.approx(steps["gpipe"], rel=0.01)


def test_a_slow_replica_holds_up_the_others() -> None:
    graph, machines = chain(), cluster(per_node=2, device=SLOW)
    even = pipeline_plan(graph, replicas=2, microbatches=(8,), machines=machines)
    uneven = replace(even, stages=(replace(even.stages[0], shares=(3, 1)),))
    assert column_classes(even) == ((((0,),), ((1,),)),)
    assert column_classes(uneven) == ((((0,),),), (((1,),),))
    assert simulate(uneven).step_seconds > simulate(even).step_seconds


def test_a_replica_without_rows_is_free_where_nobody_waits_for_it() -> None:
    how = {"replicas": 2, "microbatches": (8, 1)}
    idle = simulate(pipeline_plan(chain(), positions=2, **how))  # type: ignore[arg-type]
    waited_for = simulate(pipeline_plan(chain(), sharding="parameters", **how))  # type: ignore[arg-type]
    assert seconds_of_second_microbatch(idle, rank=1) == 0
    assert seconds_of_second_microbatch(waited_for, rank=1) > 0
    assert all(seconds_of_second_microbatch(timeline, rank=0) > 0 for timeline in (idle, waited_for))


def seconds_of_second_microbatch(timeline: Timeline, rank: int) -> float:
    return sum(e.seconds for e in timeline.lane(rank, "compute") if e.name in ("0F1", "0B1"))


def test_equal_replicas_are_played_once_and_stand_for_all() -> None:
    timeline = simulate(pipeline_plan(chain(), positions=2, replicas=4))
    assert timeline.stands_for == ((0, 4), (4, 4))


def test_a_plan_for_1024_devices_is_simulated_in_seconds() -> None:
    graph = chain_graph([BlockSpec()] * 64)
    plan = pipeline_plan(graph, positions=64, replicas=16, microbatches=64, machines=cluster(nodes=128, device=FAST))
    start = time.process_time()
    timeline = simulate(plan)
    # About 3 s of a core; time on the wall says more about what else the machine does.
    assert time.process_time() - start < 15
    assert len(timeline.ranks) == 64
    assert timeline.ledger.step_seconds == pytest.approx(estimate(plan).step_seconds, rel=0.3)


def trace(plan: Plan) -> list[dict[str, object]]:
    events: list[dict[str, object]] = json.loads(simulate(plan).to_chrome_json())["traceEvents"]
    return events


@settings(max_examples=10)
@given(any_plans())
def test_slices_of_the_trace_are_not_negative_and_nest_on_every_track(plan: Plan) -> None:
    tracks: dict[tuple[object, object], list[tuple[float, float]]] = {}
    for event in trace(plan):
        if event["ph"] == "X":
            start, seconds = float(str(event["ts"])), float(str(event["dur"]))
            assert start >= 0 and seconds >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + seconds))
    for spans in tracks.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            # A nanosecond is the resolution of the trace; sums of microseconds round below it.
            while around and around[-1] <= start + 1e-6:
                around.pop()
            assert not around or end <= around[-1] + 1e-6
            around.append(end)


def test_the_trace_names_ranks_and_lanes_and_joins_both_ends_of_every_message() -> None:
    plan = pipeline_plan(chain(), positions=2, replicas=2, microbatches=3)
    events = trace(plan)
    named = {str(e["args"]["name"]) for e in events if e["name"] == "process_name"}  # type: ignore[index]
    assert named == {"rank 0 (as 2 ranks)", "rank 2 (as 2 ranks)"}
    lanes = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0]  # type: ignore[index]
    assert lanes == ["compute", "send", "receive", "collective"]
    starts, ends = ([e["id"] for e in events if e["ph"] == kind] for kind in "sf")
    assert len(starts) == 3 + 3
    assert sorted(map(str, starts)) == sorted(map(str, ends))


def test_recompute_is_a_slice_inside_its_backward() -> None:
    events = trace(pipeline_plan(gpt_graph(layers=4), recompute=True))
    outer = next(e for e in events if e["name"] == "0B0")
    inner = next(e for e in events if e["name"] == "recompute")
    assert float(str(inner["ts"])) >= float(str(outer["ts"]))
    assert float(str(inner["dur"])) < float(str(outer["dur"]))
