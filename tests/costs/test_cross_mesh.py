"""Stages on meshes of different shapes: who exchanges which rows with whom, what it costs, what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clusters import SLOW, cluster
from graphs import BlockSpec, chain_graph
from mesh_plans import SCHEDULES, Side, mesh_plan, mesh_plans
from pipeline_plans import chain, pipeline_plan
from placer.cli.commands.planning.explain import instruction_text
from placer.cluster.cluster import Link
from placer.costs.step_estimate import estimate
from placer.graph import Affine, Tensor
from placer.legality import check
from placer.plans.plan import Plan, ScheduleName
from placer.plans.schedule import Action
from placer.program.agreement import agreement
from placer.program.buckets import shared_parameters
from placer.program.instructions import Message, Program
from placer.program.lowering import lower, rows_of_replica
from placer.program.ranks import connected_replicas
from placer.report.plan_table import plan_table
from placer.rules.layouts import SAME, State, cut, piece
from placer.simulator.simulation import column_classes, simulate
from placer.spmd.cross_mesh import Crossing, Division, Range, overlaps, routes

# The design's bound on closed form against simulation.
AGREEMENT = 0.02

divisions = st.integers(1, 6).flatmap(
    lambda count: st.builds(Division, st.just(count), st.one_of(st.just(()), st.tuples(*[st.integers(1, 5)] * count)))
)


@given(st.integers(1, 40), divisions, divisions)
def test_every_row_crosses_once_from_the_replica_that_has_it_to_the_one_that_wants_it(
    rows: int, source: Division, target: Division
) -> None:
    found = overlaps(rows, source, target)
    assert [row for one in found for row in range(one.first, one.last)] == list(range(rows))
    for one in found:
        for spans, replica in ((source.spans(rows), one.source), (target.spans(rows), one.target)):
            assert spans[replica][0] <= one.first < one.last <= spans[replica][1]
    assert len(found) <= source.replicas + target.replicas - 1


@given(st.integers(1, 40), divisions, divisions)
def test_each_replica_with_rows_opens_one_overlap(rows: int, source: Division, target: Division) -> None:
    found = overlaps(rows, source, target)
    assert Counter(one.source for one in found if one.opens_source) == Counter({one.source for one in found})
    assert Counter(one.target for one in found if one.opens_target) == Counter({one.target for one in found})


STATES = st.sampled_from([SAME, cut(1), cut(2)])


@given(STATES, STATES, st.integers(1, 4), st.integers(1, 4), st.integers(4, 9), st.integers(4, 9))
def test_every_device_gets_each_entry_it_wants_once_from_one_that_has_it(
    have: State, want: State, source: int, target: int, first: int, second: int
) -> None:
    assume((have, source) != (want, target))
    tensor = Tensor(shape=(Affine(0, 1), Affine(first), Affine(second)), dtype="float32")
    found = routes(Crossing("b0.0", tensor, have, want), source, target)
    for inner in range(target):
        got = [entry for route in found if route.target == inner for entry in entries(tensor, route.ranges)]
        assert sorted(got) == sorted(entries(tensor, held(tensor, want, target, inner)))
    for route in found:
        assert set(entries(tensor, route.ranges)) <= set(entries(tensor, held(tensor, have, source, route.source)))


def held(tensor: Tensor, state: State, degree: int, inner: int) -> tuple[Range, ...]:
    dim = getattr(state.value, "dim", None)
    return () if dim is None else (Range(dim, *piece(tensor.shape[dim].fixed, degree, inner)),)


def entries(tensor: Tensor, ranges: tuple[Range, ...]) -> list[tuple[int, int]]:
    spans = {one.dim: range(one.start, one.stop) for one in ranges}
    sizes = (range(tensor.shape[1].fixed), range(tensor.shape[2].fixed))
    return [(a, b) for a in spans.get(1, sizes[0]) for b in spans.get(2, sizes[1])]


@settings(max_examples=40)
@given(mesh_plans())
def test_programs_of_any_shapes_agree_and_run_to_their_end(plan: Plan) -> None:
    assert agreement(lower(plan)) == ()


@settings(max_examples=40)
@given(mesh_plans())
def test_a_replica_gets_each_of_its_rows_once_from_every_stage_it_reads(plan: Plan) -> None:
    for program in lower(plan):
        (stage,) = program.stages
        starts = [Division(mesh.replicas, mesh.shares) for mesh in plan.meshes][stage]
        for (microbatch, kind, source, value), rows in received(program).items():
            first, last = starts.spans(plan.microbatches[microbatch])[program.replica]
            assert sorted(rows) == list(range(first, last)), (kind, source, value)


def received(program: Program) -> dict[tuple[int, str, int, str], list[int]]:
    found: dict[tuple[int, str, int, str], list[int]] = {}
    for entry in program.instructions:
        if isinstance(entry, Message) and entry.direction == "receive":
            for value in entry.values:
                key = (entry.microbatch, entry.kind, entry.source_stage, value)
                found.setdefault(key, []).extend(range(*entry.rows))
    return found


@settings(max_examples=40)
@given(mesh_plans())
def test_columns_are_every_replica_once_and_send_nothing_to_each_other(plan: Plan) -> None:
    found = connected_replicas(plan)
    for position, mesh in enumerate(plan.meshes):
        assert sorted(replica for column in found for replica in column[position]) == list(range(mesh.replicas))
    for column in found:
        programs = lower(plan, columns=[column])
        ranks = {program.rank for program in programs}
        peers = {e.peer for program in programs for e in program.instructions if isinstance(e, Message)}
        assert peers <= ranks


@settings(max_examples=40)
@given(mesh_plans())
def test_one_column_of_each_kind_is_played_as_all_are(plan: Plan) -> None:
    timeline = simulate(plan)
    assert sum(count for _, count in timeline.stands_for) == plan.world_size
    assert timeline.ledger.seconds.total == pytest.approx(timeline.ledger.step_seconds)


def test_two_replicas_before_one_are_as_many_columns_as_the_one_has_replicas() -> None:
    assert connected_replicas(mesh_plan(chain(), (4, 2))) == (((0, 1), (0,)), ((2, 3), (1,)))
    assert connected_replicas(mesh_plan(chain(), (3, 2))) == (((0, 1, 2), (0, 1)),)
    assert len(column_classes(mesh_plan(chain(), (4, 2)))) == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sides", [(1, 2), (2, 1), (3, 2), (2, 3), (1, 3), (2, 1, 3), (4, 2, 1)], ids=str)
def test_stages_may_have_any_numbers_of_replicas(sides: tuple[int, ...], schedule: ScheduleName) -> None:
    for rows in ((12, 12, 12), (12, 12, 7), (12, 1)):
        assert check(mesh_plan(chain(), sides, microbatches=rows, schedule=schedule)) == ()


def test_stages_may_have_shares_of_their_own() -> None:
    made = mesh_plan(chain(), (Side(replicas=2, shares=(3, 1)), Side(replicas=2), Side(replicas=2, shares=(1, 5))))
    assert check(made) == ()
    assert [rows_of_replica(made, position, 0)[0] for position in range(3)] == [9, 6, 2]


def test_stages_may_shard_over_different_numbers_of_replicas_what_is_tied_between_them() -> None:
    sides = (Side(replicas=2, sharding="parameters"), Side(), Side(replicas=3, sharding="gradients"))
    made = mesh_plan(chain(tied=[(0, 7)]), sides)
    assert shared_parameters(made) == {"blocks.0.weight": (0, 2)}
    assert check(made) == ()
    tied = [e for e in lower(made)[0].instructions if getattr(e, "purpose", "") == "tied"]
    assert [(entry.ranks, entry.bytes) for entry in tied] == [((0, 1, 3, 4, 5), 4 * 1_000)]  # type: ignore[union-attr]


def test_a_thousand_devices_of_two_shapes_are_judged_and_played_by_a_few_of_them() -> None:
    graph = chain_graph([BlockSpec()] * 16)
    wide = mesh_plan(graph, (512, 256, 128, 128), microbatches=(1024,) * 8, machines=cluster(nodes=128, device=SLOW))
    assert check(wide) == ()
    assert len(simulate(wide).stands_for) == 4 + 2 + 1 + 1


# -- seconds


def free_compute(output: int) -> Plan:
    """Two stages whose messages are all that takes time: 4 bytes x `output` a row over 1 MB/s, no latency."""
    wire = Link(name="wire", latency_seconds=0.0, bandwidth=1e6)
    graph = chain_graph([BlockSpec(flops=1, traffic=1, parameters=1, output=output)] * 2)
    return pipeline_plan(graph, positions=2, machines=cluster(per_node=4, device=SLOW, inside=wire))


@pytest.mark.parametrize(
    ("sides", "rows"),
    [((1, 1), 12), ((1, 2), 12), ((1, 3), 12), ((2, 1), 12), ((3, 1), 12), ((2, 2), 6)],
    ids=str,
)
def test_an_exchange_takes_as_long_as_all_that_its_busiest_device_sends_or_gets(
    sides: tuple[int, int], rows: int
) -> None:
    base = free_compute(1_000)
    made = mesh_plan(base.graph, sides, microbatches=1, machines=base.cluster)
    both_ways = 2 * rows * 4 * 1_000 / 1e6
    assert estimate(made).seconds.communication == pytest.approx(both_ways, rel=1e-6)
    played = simulate(made)
    assert max(e.end for e in played.slices if e.name == "act 0>1 m0") == pytest.approx(both_ways / 2, rel=0.01)
    # The closed form lets gradients wait for the last of the values; they need not.
    assert both_ways / 2 < played.step_seconds <= both_ways * 1.01


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from(SCHEDULES), st.integers(1, 12))
def test_closed_form_and_simulation_agree_where_computations_are_balanced(
    first: int, second: int, third: int, schedule: ScheduleName, microbatches: int
) -> None:
    """Each replica of a stage of n takes 12 / n rows: its blocks do n times the work a row."""
    replicas = (first, second, third)
    specs = [BlockSpec(flops=10**7 * n, traffic=8_000 * n, saved=4_000 * n) for n in replicas]
    made = mesh_plan(chain_graph(specs), replicas, microbatches=microbatches, schedule=schedule)
    played, closed = simulate(made).ledger.step_seconds, estimate(made).step_seconds
    assert abs(closed - played) <= AGREEMENT * played


@settings(max_examples=30)
@given(mesh_plans(), st.integers(2, 10))
def test_more_bandwidth_and_less_latency_never_slow_the_estimate(plan: Plan, factor: int) -> None:
    ((node, count),) = plan.cluster.groups
    (level,) = plan.cluster.levels
    for link in (
        replace(node.link, bandwidth=node.link.bandwidth * factor),
        replace(node.link, latency_seconds=node.link.latency_seconds / factor),
    ):
        quick = replace(
            plan.cluster,
            groups=((replace(node, link=link, nic=link), count),),
            levels=(replace(level, link=link),),
        )
        assert estimate(replace(plan, cluster=quick)).step_seconds <= estimate(plan).step_seconds * (1 + 1e-12)


def test_shares_written_otherwise_change_nothing() -> None:
    one = mesh_plan(chain(), (Side(replicas=2, shares=(3, 1)), Side(replicas=2, shares=(3, 1))))
    other = mesh_plan(chain(), (Side(replicas=2, shares=(3, 1)), Side(replicas=2, shares=(6, 2))))
    assert estimate(one).step_seconds == estimate(other).step_seconds
    assert [(e, p.rank) for p in lower(one) for e in p.instructions] == [
        (e, p.rank) for p in lower(other) for e in p.instructions
    ]


def test_a_planted_wrong_row_is_named() -> None:
    first, *others = lower(mesh_plan(chain(), (1, 2), microbatches=1))
    place = next(i for i, entry in enumerate(first.instructions) if isinstance(entry, Message))
    message = first.instructions[place]
    assert isinstance(message, Message)
    wrong = replace(message, rows=(message.rows[0] + 1, message.rows[1] + 1))
    planted = replace(first, instructions=(*first.instructions[:place], wrong, *first.instructions[place + 1 :]))
    (*_, found) = sorted(agreement((planted, *others)), key=lambda text: "disagree" in text)
    assert "disagree in rows" in found
    assert Action(0, "F", 0) in {getattr(entry, "action", None) for entry in first.instructions}


def test_tables_and_programs_say_which_rows_go_where() -> None:
    made = mesh_plan(chain(), (Side(replicas=2, shares=(3, 1)), Side(replicas=3)), microbatches=1)
    told = [instruction_text(entry) for entry in lower(made)[0].instructions]
    assert any("to rank 2: b3.0, rows 0-3 (" in line for line in told)
    assert any("to rank 4: b3.0, rows 8 (" in line for line in told)
    rows = [line.split() for line in plan_table(made).splitlines() if "blocks." in line]
    assert rows[0][-6:-3] == ["9", "+", "3"]
    assert rows[1][-6:-3] == ["3", "x", "4"]
