"""Fusion of gradients: the plan's size is the cheapest one, pinned where asked, and means the same to costs, simulator
and program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import placer
import problems
from clusters import INSIDE, SLOW, cluster
from graphs import BlockSpec, chain_graph
from pipeline_plans import pipeline_plan
from placer.api import problem_again
from placer.cluster.cluster import Link
from placer.costs.communication.gradient_buckets import SIZES, bucket_count, exposed_seconds, filled, seconds_after
from placer.costs.step_estimate import costs_of, estimate, with_best_buckets
from placer.errors import UsageError
from placer.graph import Graph, Parameter
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.program.buckets import shard_bytes
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.search.asked import parse_pins, pin_texts
from placer.search.judge import solve_with
from placer.simulator.simulation import simulate
from placer.spmd.parameter_layouts import kept_whole
from placer.strategies.intra_op.layouts import layouts

MIB = 2**20
# 8 blocks of 4 MiB of gradients, whose backward takes about as long as a link of 1 GB/s needs for them.
GRAPH = chain_graph([BlockSpec(parameters=MIB, flops=4 * 10**9, output=10)] * 8, rows=2)


def machines(latency: float) -> Link:
    """A link of 1 GB/s."""
    return Link(name="link", latency_seconds=latency, bandwidth=1e9)


def data_parallel(latency: float, *, graph: Graph = GRAPH, overlap: bool = True) -> Plan:
    """Two replicas of one stage."""
    made = problems.cluster(*[problems.device(bandwidth=1e12)] * 2, link=machines(latency))
    return pipeline_plan(
        graph, replicas=2, machines=made, microbatches=(2,), settings=RunSettings(clip_norm=None, overlap=overlap)
    )


def test_what_is_exposed_is_the_last_bucket_or_what_the_backward_cannot_hide() -> None:
    def seconds(size: float) -> float:
        return 1.0 + size / 100

    assert [bucket_count(1000, size) for size in (1000, 999, 250, 1)] == [1, 2, 4, 1000]
    # Four buckets of 1 + 2.5 s, the last of them ready at the end of the backward.
    assert seconds_after(seconds, 1000, 250) == 4 * 3.5
    assert exposed_seconds(seconds, (250,) * 4, beside=100.0) == 3.5
    assert exposed_seconds(seconds, (250,) * 4, beside=8.0) == 4 * 3.5 - 8.0 * 3 / 4
    assert exposed_seconds(seconds, (250,) * 4, beside=0.0) == 4 * 3.5
    # The first is summed from a sixth of the backward on; the second waits for it, the third for its own gradients.
    assert exposed_seconds(seconds, (100, 100, 400), beside=6.0) == pytest.approx(5.0)
    assert exposed_seconds(seconds, (300, 300), beside=2.0) == pytest.approx(2 * 4.0 - 2.0 / 2)


def test_buckets_are_closed_when_they_reach_the_cap_and_not_before() -> None:
    assert filled((3, 3, 3, 3, 1), 5) == (6, 6, 1)
    assert filled((3, 3), 6) == (6,)
    assert filled((), 5) == ()


@settings(max_examples=25)
@given(st.lists(st.integers(1, 8 * MIB), min_size=1, max_size=8), st.sampled_from(SIZES[:5]), st.integers(6, 10))
def test_gradients_of_any_sizes_are_exposed_as_the_simulator_plays_them(
    elements: list[int], bucket_bytes: int, rate: int
) -> None:
    """Few gradients larger than a bucket, so that DDP makes fewer buckets than their bytes divided by its size."""
    graph = chain_graph([BlockSpec(parameters=size, flops=10**rate) for size in elements], rows=2)
    plan = replace(data_parallel(1e-5, graph=graph), bucket_bytes=bucket_bytes)
    assert estimate(plan).step_seconds == pytest.approx(simulate(plan).step_seconds, rel=0.02)


def test_megatron_core_sums_in_float32_what_it_keeps_so() -> None:
    """Twice the bytes over a link of 1 GB/s, as this runtime does; NeMo's recipes keep and sum 16 bits."""
    plan = data_parallel(1e-6, overlap=False)
    wide, narrow, own = (
        replace(plan, settings=RunSettings(clip_norm=None, overlap=False, precision="bfloat16", stack=stack))
        for stack in ("megatron-core", "nemo", "torch")
    )
    reduced = [estimate(each).seconds.reduction for each in (wide, narrow, own)]
    assert reduced[2] == pytest.approx(reduced[0], rel=5e-3)  # which casts besides
    assert reduced[0] - reduced[1] == pytest.approx(8 * MIB * 2 / 1e9, rel=1e-3)  # a ring of two passes half on twice
    assert simulate(wide).ledger.seconds.reduction == pytest.approx(reduced[0])


def best_buckets(plan: Plan) -> Plan:
    return with_best_buckets(costs_of(plan), plan)


@pytest.mark.parametrize("latency", [1e-6, 1e-4, 1e-3, 1e-2, 1.0])
def test_the_chosen_size_costs_no_more_than_any_other(latency: float) -> None:
    plan = data_parallel(latency)
    best = best_buckets(plan)
    steps = {size: estimate(replace(plan, bucket_bytes=size)).step_seconds for size in SIZES}
    assert estimate(best).step_seconds == min(steps.values())
    assert best.bucket_bytes == min(size for size in SIZES if steps[size] == min(steps.values()))


def test_slower_links_want_larger_buckets_and_no_overlap_wants_one() -> None:
    sizes = [best_buckets(data_parallel(latency)).bucket_bytes for latency in (1e-6, 5e-3, 1.0)]
    assert sizes[0] < sizes[1] < sizes[2] == 32 * MIB
    assert best_buckets(data_parallel(1e-6, overlap=False)).bucket_bytes == 32 * MIB


def test_a_pipeline_sums_each_stage_in_one_bucket() -> None:
    made = problems.cluster(*[problems.device()] * 4, link=machines(1e-3))
    plan = best_buckets(pipeline_plan(GRAPH, positions=2, replicas=2, machines=made))
    found = [entry for entry in lower(plan)[0].instructions if isinstance(entry, Collective)]
    assert [entry.bytes for entry in found if entry.purpose == "gradients"] == [16 * MIB]


@pytest.mark.parametrize("latency", [1e-5, 3e-3])
def test_the_simulator_prefers_the_size_that_the_estimate_does(latency: float) -> None:
    plan = data_parallel(latency)
    best = best_buckets(plan)
    played = {size: simulate(replace(plan, bucket_bytes=size)).step_seconds for size in (MIB, 4 * MIB, 32 * MIB)}
    assert simulate(best).step_seconds <= min(played.values()) * 1.02


def test_nothing_hides_the_sum_of_the_gradient_that_is_ready_last() -> None:
    """An embedding of 16 MiB, whose sum takes as many milliseconds, behind seven blocks of which all is hidden."""
    graph = chain_graph([BlockSpec(parameters=4 * MIB), *[BlockSpec(parameters=MIB, flops=4 * 10**10)] * 7], rows=2)
    plan = replace(data_parallel(1e-6), graph=graph, bucket_bytes=MIB)
    told, played = (estimate(plan).seconds.reduction, simulate(plan).ledger.seconds.reduction)
    assert told == pytest.approx(16 * MIB / 1e9, rel=0.05)
    assert played == pytest.approx(told, rel=0.05)


@pytest.mark.parametrize(("cores", "hidden"), [(None, 1.0), (2.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_sums_hide_behind_a_backward_as_far_as_cores_are_left_for_them(cores: float | None, hidden: float) -> None:
    """Threads of a sum take a core; where computation has all of them, each second of a sum is one of the step."""
    chip = replace(problems.device(bandwidth=1e12), communication_cores=cores)
    made = problems.cluster(chip, chip, link=machines(1e-5))
    settings = RunSettings(clip_norm=None)
    plan = pipeline_plan(GRAPH, replicas=2, machines=made, microbatches=(2,), settings=settings)
    plan = replace(plan, bucket_bytes=4 * MIB)
    after = estimate(replace(plan, settings=replace(settings, overlap=False)))
    count, backward = 8, after.seconds.backward
    loss = costs_of(plan).fixed((0, 1))
    each = (after.seconds.reduction - loss) / count
    exposed = max(each, count * each - hidden * backward * (count - 1) / count)
    assert estimate(plan).seconds.reduction - loss == pytest.approx(exposed)
    assert simulate(plan).step_seconds == pytest.approx(estimate(plan).step_seconds, rel=0.02)


def test_without_overlap_placer_sums_the_buckets_after_the_backward() -> None:
    plans = [replace(data_parallel(1e-5, overlap=overlap), bucket_bytes=16 * MIB) for overlap in (True, False)]
    engines = [
        [(entry.engine, entry.overlaps) for entry in lower(plan)[0].instructions if isinstance(entry, Collective)][:-1]
        for plan in plans
    ]
    assert engines == [[("ddp", True)] * 2, [("placer", False)] * 2]
    assert [simulate(plan).ledger.step_seconds for plan in plans] == pytest.approx(
        [estimate(plan).step_seconds for plan in plans], rel=0.02
    )


def test_a_pinned_size_is_kept_and_read_back() -> None:
    problem = problems.problem(GRAPH, problems.cluster(*[problems.device()] * 2))
    pins = parse_pins(["bucket=6.5 MiB", "data=2", "shard=none"], GRAPH)
    found = solve_with(replace(problem, pins=pins), "stages").plan
    assert found.bucket_bytes == 13 * MIB // 2
    assert parse_pins(pin_texts(pins), GRAPH) == pins
    assert Plan.from_json(found.to_json()).bucket_bytes == found.bucket_bytes


def test_a_part_of_a_byte_holds_nothing() -> None:
    assert parse_pins(["bucket=0.6 MiB"], GRAPH).bucket == 629_145


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bucket=25", "has no unit; write it like 80 GiB"),
        ("bucket=0 B", "wants at least 1 B"),
        ("bucket=-1 MiB", "wants at least 1 B"),
        ("bucket=0.3 B", "wants at least 1 B"),
        ("bucket=much", "is no quantity"),
    ],
)
def test_a_size_that_is_none_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_pins([text], GRAPH)


def test_a_parameter_without_rows_has_shards_of_no_bytes() -> None:
    empty = Parameter(shape=(0, 8), dtype="float32")
    assert shard_bytes(empty, RunSettings(), 4) == 0
    assert shard_bytes(replace(empty, shape=(5, 8)), RunSettings(), 4) == 2 * 8 * 4


@pytest.mark.in_turns
def test_a_parameter_that_blocks_keep_unlike_each_other_is_summed_whole() -> None:
    """Weights of a head that is cut on its classes, which the embedding reads whole."""
    wire = Link(name="wire", latency_seconds=1e-6, bandwidth=1e8)
    machines, slow = (cluster(per_node=4, device=SLOW, inside=link) for link in (INSIDE, wire))
    batch = {"input_ids": (8, 16), "labels": (8, 16)}
    plan = placer.plan("examples.models:tiny_gpt2", machines, batch=batch, pins=("tensor=2", "data=2", "pipeline=1"))
    problem = problem_again(plan)
    cut = [one for one in layouts(problem, problem.costs) if one.degree == 2 and kept_whole(plan.graph, one)]
    assert cut
    for one in cut:
        made = replace(plan, cluster=slow, layouts=(one,), bucket_bytes=2**12)
        reductions = [ledger.seconds.reduction for ledger in (estimate(made), simulate(made).ledger)]
        assert reductions[0] >= reductions[1] * (1 - 0.02)
