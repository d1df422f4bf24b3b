"""CPU workers beside GPUs: the cost of each way to sum their gradients, the choice, and parity in each of them.

There is no GPU here: both roles are played by gloo processes, a second gloo group in place of NCCL's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mixed_ranks
from clusters import SLOW
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from graphs import BlockSpec, chain_graph
from mixed_plans import CPU, GPU, HOST, PCIE, machines, on
from pipeline_plans import pipeline_plan
from placer.cli.commands.planning.explain import instruction_text
from placer.cluster.cluster import Cluster
from placer.cluster.topology import LOOPBACK
from placer.costs.communication.mixed_allreduce import PASSES, MixedSum, roles
from placer.costs.communication.network import Network, message_seconds
from placer.costs.step_estimate import estimate
from placer.errors import UsageError
from placer.legality import check
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.program.agreement import agreement
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.program.mixed_allreduce import SumRoute
from placer.program.peers import peer_disagreements
from placer.report.mixed_allreduce import route_text
from placer.report.plan_table import plan_table
from placer.runtime.distributed.backends import backend_of
from placer.runtime.distributed.world import device_of
from placer.runtime.dry import DryRuns, rank_classes
from placer.search.judge import solve_with
from placer.simulator.simulation import simulate
from pool import on_ranks, pool
from problems import problem

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES)
MIB = 2**20
SLOW_GPU = replace(GPU, memory_bandwidth=1e9)
LATE = replace(GPU, launch_seconds=1e-2)


def data_parallel(cluster: Cluster, *, overlap: bool = True) -> Plan:
    """Every device a replica of a model of 8 MiB of gradients, in buckets of 4 MiB."""
    graph = chain_graph([BlockSpec(parameters=MIB, flops=10**6, output=10)] * 2, rows=8)
    made = pipeline_plan(
        graph, replicas=cluster.size, machines=cluster, microbatches=(8,), settings=RunSettings(overlap=overlap)
    )
    return replace(made, bucket_bytes=4 * MIB)


def kind_of(sums: MixedSum, size: float) -> str:
    return sums.cheapest(size)[0]


def test_seconds_of_a_gpu_and_a_cpu_worker_are_those_of_the_formula() -> None:
    size = 10**8
    found = MixedSum(machines(1, 1), (0, 1)).seconds(size)
    copy = PCIE.latency_seconds + size / PCIE.bandwidth
    step = LOOPBACK.latency_seconds + size / 2 / (LOOPBACK.bandwidth * LOOPBACK.shared)
    added = PASSES * size / 2 * 2 / HOST.memory_bandwidth
    assert found["host"] == pytest.approx(2 * copy + 2 * step + added)
    message = LOOPBACK.latency_seconds + size / LOOPBACK.bandwidth
    add = GPU.launch_seconds + PASSES * size / GPU.memory_bandwidth
    assert found["device"] == pytest.approx(message + copy + add + copy + message)
    assert "hosts" not in found


def test_the_choice_flips_with_bytes_bandwidth_and_the_mix_of_devices() -> None:
    pair = MixedSum(machines(1, 1), (0, 1))
    assert (kind_of(pair, 8), kind_of(pair, 32 * MIB)) == ("host", "device")
    assert kind_of(MixedSum(machines(1, 1, gpu=SLOW_GPU), (0, 1)), 32 * MIB) == "host"
    assert kind_of(MixedSum(machines(2, 2), (0, 1, 2, 3)), 32 * MIB) == "device"
    assert kind_of(MixedSum(machines(1, 3), (0, 1, 2, 3)), 32 * MIB) == "host"
    slow, fast = (MixedSum(machines(1, 7, nodes=2, nic=nic), tuple(range(16))) for nic in (1e8, 1e11))
    assert (kind_of(slow, 32 * MIB), kind_of(fast, 32 * MIB)) == ("hosts", "host")


def test_what_cpus_say_goes_between_processes_and_a_gpu_copies_it() -> None:
    own, size = machines(2, 2), 10**8
    message = LOOPBACK.latency_seconds + size / LOOPBACK.bandwidth
    copy = PCIE.latency_seconds + size / PCIE.bandwidth
    assert message_seconds(own, (2,), (3,), size) == pytest.approx(message)
    assert (
        message_seconds(own, (0,), (3,), size)
        == message_seconds(own, (3,), (0,), size)
        == pytest.approx(message + copy)
    )
    assert message_seconds(own, (0,), (1,), size) == pytest.approx(PCIE.latency_seconds + size / PCIE.bandwidth)
    ring = 2 * (LOOPBACK.latency_seconds + size / 2 / (LOOPBACK.bandwidth * LOOPBACK.shared))
    assert Network(own).collective("all_reduce", (2, 3), size) == pytest.approx(ring)


def test_a_worker_sends_to_a_gpu_of_its_own_host_where_there_is_one() -> None:
    assert roles(machines(1, 2, nodes=2), (0, 1, 2, 3, 4, 5)).workers == ((1, 2), (4, 5))
    assert roles(machines(2, 2), (0, 1, 2, 3)).workers == ((2,), (3,))
    assert roles(machines(1, 1, nodes=2), (0, 1, 4 - 1)).workers == ((1, 2),)


@given(
    gpus=st.integers(1, 3), cpus=st.integers(1, 3), nodes=st.integers(1, 2), size=st.floats(8, 1e10),
    factor=st.floats(1, 100),
)  # fmt: skip
def test_seconds_grow_with_bytes_fall_per_byte_and_fall_with_bandwidth(
    gpus: int, cpus: int, nodes: int, size: float, factor: float
) -> None:
    own = machines(gpus, cpus, nodes=nodes)
    devices = tuple(range(own.size))
    few, many = (MixedSum(own, devices).seconds(size * times) for times in (1.0, factor))
    fast = MixedSum(machines(gpus, cpus, nodes=nodes, nic=1e10 * factor), devices).seconds(size)
    for way in few:
        assert few[way] <= many[way] * (1 + 1e-9) <= few[way] * factor * (1 + 2e-9)
        assert fast[way] <= few[way] * (1 + 1e-9)


@pytest.mark.parametrize("cluster", [machines(1, 1), machines(2, 2), machines(1, 3)], ids=["1+1", "2+2", "1+3"])
def test_program_estimate_and_simulator_take_the_same_way(cluster: Cluster) -> None:
    plan = data_parallel(cluster)
    sums = MixedSum(cluster, tuple(range(cluster.size)))
    buckets = [e for e in lower(plan)[0].instructions if isinstance(e, Collective) and e.purpose == "gradients"]
    assert len(buckets) == 2 and all(entry.engine == "placer" and not entry.overlaps for entry in buckets)
    assert {entry.way.kind for entry in buckets if entry.way} == {kind_of(sums, 4 * MIB)}
    least = sum(sums.cheapest(entry.bytes)[1] for entry in buckets)
    assert estimate(plan).seconds.reduction >= least
    assert simulate(plan).ledger.step_seconds == pytest.approx(estimate(plan).step_seconds, rel=0.02)
    assert agreement(lower(plan)) == ()


def test_explain_says_which_way_and_why() -> None:
    plan = data_parallel(machines(2, 2))
    entry = next(e for e in lower(plan)[2].instructions if isinstance(e, Collective) and e.purpose == "gradients")
    assert "all_reduce gradients over ranks 0, 1, 2, 3" in instruction_text(entry)
    told = route_text(plan, entry, 2)
    assert told.startswith("through the GPUs in ") and "(through the hosts " in told
    assert told.endswith("send to rank 0, receive from rank 0")
    shown = plan_table(replace(plan, ledger=estimate(plan)))
    assert "stage 0 sums gradients (4 MiB) of GPUs and CPUs through the GPUs in" in " ".join(shown.split())


def test_another_way_in_a_peers_program_is_told_with_both_ranks() -> None:
    plan = data_parallel(machines(1, 1))
    own, other = lower(plan)
    changed = tuple(
        replace(e, way=replace(e.way, kind="host")) if isinstance(e, Collective) and isinstance(e.way, SumRoute) else e
        for e in other.instructions
    )
    found = peer_disagreements(own, [replace(other, instructions=changed)])
    assert found and all((one.rank, one.peer, one.what) == (0, 1, "way") for one in found)


def test_what_cannot_run_on_both_kinds_is_refused_with_the_reason() -> None:
    plan = data_parallel(machines(2, 2))
    for sharding in ("optimizer", "gradients", "parameters"):
        made = replace(plan, stages=(replace(plan.stages[0], sharding=sharding),))
        assert [found.rule for found in check(made)] == ["kinds"]
        assert f"shards {sharding} over replicas on GPUs and on CPUs" in check(made)[0].message
    cut = replace(plan, stages=(replace(plan.stages[0], degree=2, devices=(0, 2, 1, 3)),))
    assert any("(devices 0, 2), which have no library in common" in str(found) for found in check(cut))


def test_a_cluster_that_says_nothing_of_its_hosts_is_told_what_to_add() -> None:
    bare = machines(1, 1)
    silent = replace(bare, groups=tuple((replace(node, host=None), count) for node, count in bare.groups))
    with pytest.raises(UsageError, match=r"says nothing of the host of node node; add .* host: \{link: pcie5"):
        estimate(data_parallel(silent))


def test_the_search_equals_the_enumeration_on_both_kinds() -> None:
    blocks = [BlockSpec(flops=10**9, parameters=1000, saved=1000, output=100, traffic=1000)] * 2
    asked = problem(chain_graph(blocks, rows=8), machines(1, 2), rows=6, settings=RunSettings(clip_norm=None))
    ours, every = solve_with(asked, "stages").plan, solve_with(asked, "exhaustive").plan
    assert ours.ledger is not None and every.ledger is not None
    assert ours.ledger.step_seconds == pytest.approx(every.ledger.step_seconds, rel=1e-9)
    assert check(ours) == ()


def test_gpus_are_numbered_among_those_of_their_node() -> None:
    node = replace(machines(1, 1).nodes[0], devices=((CPU, 1), (GPU, 2)))
    plan = data_parallel(replace(machines(1, 1), groups=((node, 2),)))
    found = [str(device_of(plan, rank)) for rank in range(6)]
    assert found == ["cpu", "cuda:0", "cuda:1"] * 2


def test_ranks_on_gpus_have_both_libraries_and_those_on_cpus_one(tmp_path: Path) -> None:
    plan = data_parallel(machines(1, 1))
    assert [backend_of(plan, rank) for rank in range(2)] == ["cpu:gloo,cuda:nccl", "cpu:gloo"]
    alone = Cluster(name="cpus", groups=((replace(machines(1, 1).nodes[0], devices=((SLOW, 2),)), 1),))
    assert backend_of(replace(plan, cluster=alone), 1) == "gloo"
    # The plan is of no model that ranks could capture.
    assert pool().run(2, mixed_ranks.in_one_world, plan, str(tmp_path), timeout=1800.0) == [[2.0] * 3] * 2


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_way_gives_every_mix_of_ranks_the_exact_sum(world: int) -> None:
    assert on_ranks(world, mixed_ranks.summed_every_way, world) == [[]] * world


# A case, its machines, and the way that its buckets of gradients take there.
PARITY = [
    (replace(WORDS, replicas=2, shares=(3, 1), microbatches=(5, 3)), machines(1, 1), "host"),
    (replace(WORDS, replicas=4, shares=(3, 3, 1, 1), microbatches=(8, 4, 1)), machines(2, 2), "device"),
    (replace(IMAGES, replicas=3, shares=(2, 1, 1), microbatches=(4, 4)), machines(2, 1), "device"),
    (
        replace(WORDS, replicas=4, microbatches=(8, 4), precision="float32"),
        machines(1, 1, nodes=2, nic=1e6, gpu=LATE),
        "hosts",
    ),
    (replace(WORDS, positions=2, replicas=2, schedule="zero-bubble"), machines(2, 2), "host"),
]


@pytest.mark.in_turns
@pytest.mark.parametrize(("case", "cluster", "way"), PARITY, ids=lambda value: value if isinstance(value, str) else "")
def test_a_plan_on_both_kinds_equals_the_reference_run(case: Case, cluster: Cluster, way: str) -> None:
    plan, places = plan_of(case), PLACES.get(case.positions, ())
    sums = [e for e in lower(on(plan, cluster, places))[0].instructions if isinstance(e, Collective) and e.way]
    buckets = [entry for entry in sums if entry.purpose == "gradients"]
    assert len(buckets) > 1 and {entry.way.kind for entry in buckets if entry.way} == {way}
    report = on_ranks(case.ranks, mixed_ranks.verified, plan, cluster, places)[0]
    assert report.passed, str(report)


# Of a pipeline each position has a GPU and a CPU worker, and sends to both kinds.
PLACES = {2: (0, 2, 3, 1)}


def test_a_worker_whose_gradients_are_not_added_is_caught() -> None:
    case, cluster, _ = PARITY[1]
    report = on_ranks(4, mixed_ranks.without_additions, plan_of(case), cluster, ())[0]
    assert {c.quantity for c in report.comparisons if c.relative > report.tolerance} >= {"gradients"}


def test_ranks_communicate_what_their_programs_say() -> None:
    case, cluster, _ = PARITY[3]
    plan = plan_of(case)
    sums = [entry for entry in lower(on(plan, cluster))[0].instructions if isinstance(entry, Collective)]
    size = sum(entry.bytes for entry in sums if entry.purpose == "gradients")
    assert on_ranks(case.ranks, mixed_ranks.recorded, plan, cluster, ()) == [((), size)] * case.ranks


@pytest.mark.in_turns
def test_a_dry_run_shows_the_steps_of_a_rank() -> None:
    case, cluster, _ = PARITY[1]
    plan = on(plan_of(case), cluster)
    accelerator = DryRuns(plan).of(0)
    assert accelerator.passed
    assert {one.kind for one in accelerator.communications} == {"receive", "all_reduce", "send"}
    assert len(rank_classes(plan)) == 4
