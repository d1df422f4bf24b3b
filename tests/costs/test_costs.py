"""The estimate: monotone, indifferent to names, itemised to the last second, never below what physics forbids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusters import FAST, INSIDE, OUT, SLOW, cluster, with_host
from graphs import BlockSpec, chain_graph, chain_graphs, gpt_graph
from placer.cluster.cluster import Cluster, Device, Link
from placer.costs.communication.collectives import CollectiveKind
from placer.costs.communication.fsdp import GATHER_HOOKS, SCATTER_HOOKS
from placer.costs.communication.network import Network
from placer.costs.compute.host_issue import BACKWARD_SHARE, CORE_SHARES, FORWARD_SHARE
from placer.costs.compute.roofline import memory_rate, op_seconds, pass_seconds
from placer.costs.costs import Costs
from placer.costs.precision import EIGHT_BITS, Numerics, OpNumerics
from placer.costs.step_estimate import costs_of, estimate, estimate_with, hosted, stage_costs
from placer.errors import UsageError
from placer.graph import ITEM_BYTES, Affine, Graph, Op, Tensor
from placer.plans.plan import ModelRef, Plan, Sharding, Stage
from placer.plans.schedule import actions, in_flight
from placer.plans.settings import RunSettings, Stack
from placer.spmd.cross_mesh import Mesh

# Estimates are deterministic; the machine that runs the tests may be busy.
FEW = settings(max_examples=25)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
STACKS: tuple[Stack, ...] = ("torch", "megatron-core")
MODEL = ModelRef(kind="factory", reference="tests:none", fingerprint="none")


def plan_of(
    graph: Graph,
    machines: Cluster,
    *,
    positions: int = 1,
    replicas: int = 1,
    microbatches: tuple[int, ...] = (8,),
    schedule: str = "1f1b",
    sharding: Sharding = "none",
    recompute: bool = False,
    run: RunSettings | None = None,
) -> Plan:
    """Even stages; two per position under `interleaved`."""
    stages = positions * (2 if schedule == "interleaved" else 1)
    edges = [round(s * len(graph.blocks) / stages) for s in range(stages + 1)]
    return Plan(
        model=MODEL, graph=graph, cluster=machines, settings=run or RunSettings(), schedule=schedule,  # type: ignore[arg-type]
        microbatches=microbatches,
        stages=tuple(
            Stage(
                first=edges[s], last=edges[s + 1], sharding=sharding, recompute=recompute,
                devices=tuple(range(s % positions * replicas, (s % positions + 1) * replicas)),
            )
            for s in range(stages)
        ),
    )  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A random chain on a random layout of 16 devices in 2 nodes."""
    graph = draw(chain_graphs(least=8, most=10))
    schedule = draw(st.sampled_from(SCHEDULES))
    replicas = draw(st.sampled_from((1, 2, 3)))
    full = replicas * draw(st.integers(1, 4))
    last = draw(st.integers(1, full))
    sharded = replicas > 1 and schedule != "zero-bubble" and draw(st.booleans())
    return plan_of(
        graph,
        cluster(nodes=2),
        positions=draw(st.integers(1, 4)),
        replicas=replicas,
        microbatches=(*(full,) * draw(st.integers(0, 5)), last),
        schedule=schedule,
        sharding="parameters" if sharded else "none",
        recompute=draw(st.booleans()),
        run=RunSettings(overlap=draw(st.booleans()), fusion=draw(st.booleans())),
    )


@FEW
@given(plans())
def test_the_items_of_a_ledger_add_up_to_the_step_exactly(plan: Plan) -> None:
    ledger = estimate(plan)
    assert ledger.seconds.total == ledger.step_seconds
    parts = ledger.seconds
    assert min(parts.forward, parts.backward, parts.communication, parts.reduction, parts.bubble, parts.optimizer) >= 0
    assert len(ledger.memory) == plan.positions


@FEW
@given(plans())
def test_a_step_is_never_shorter_than_its_busiest_position_nor_than_one_microbatch_through_all(plan: Plan) -> None:
    step = estimate(plan).step_seconds * (1 + 1e-9)
    costs = stage_costs(costs_of(plan), plan)
    many = len(plan.microbatches) - 1
    busy = [many * c.work + c.last_forward + c.last_backward for c in costs]
    for position in range(plan.positions):
        assert step >= sum(busy[position :: plan.positions])
    if plan.schedule in ("gpipe", "1f1b"):
        assert step >= sum(c.last_forward + c.last_backward for c in costs)
    assert step >= max(c.tail for c in costs)


def slower_memory(machines: Cluster) -> Cluster:
    return changed(machines, memory_bandwidth=FAST.memory_bandwidth / 2)


def slower_arithmetic(machines: Cluster) -> Cluster:
    return changed(machines, rates=tuple((name, rate / 2) for name, rate in FAST.rates))


def slower_launch(machines: Cluster) -> Cluster:
    return changed(machines, launch_seconds=FAST.launch_seconds * 2)


def slower_links(machines: Cluster) -> Cluster:
    return cluster(nodes=2, inside=replace(INSIDE, bandwidth=INSIDE.bandwidth / 2), out=OUT)


def later_links(machines: Cluster) -> Cluster:
    return cluster(nodes=2, inside=replace(INSIDE, latency_seconds=1e-4), out=replace(OUT, latency_seconds=1e-3))


def changed(machines: Cluster, **fields: object) -> Cluster:
    return cluster(nodes=2, device=replace(FAST, **fields))  # type: ignore[arg-type]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "worse", [slower_memory, slower_arithmetic, slower_launch, slower_links, later_links], ids=lambda f: f.__name__
)
@FEW
@given(plan=plans())
def test_a_worse_machine_never_speeds_a_step_up(worse: Callable[[Cluster], Cluster], plan: Plan) -> None:
    before = estimate(plan).step_seconds
    assert estimate(replace(plan, cluster=worse(plan.cluster))).step_seconds >= before * (1 - 1e-9)


def larger(size: Affine) -> Affine:
    return Affine(2 * size.fixed, 2 * size.per_row + 1000)


HEAVIER: tuple[Callable[[Op], Op], ...] = (
    lambda op: replace(op, forward_flops=larger(op.forward_flops)),
    lambda op: replace(op, read_bytes=larger(op.read_bytes)),
    lambda op: replace(op, written_bytes=larger(op.written_bytes)),
    lambda op: replace(op, backward_read_bytes=larger(op.backward_read_bytes)),
)


@FEW
@given(plans(), st.sampled_from(HEAVIER))
def test_more_flops_or_bytes_never_speed_a_step_up(plan: Plan, heavier_op: Callable[[Op], Op]) -> None:
    classes = tuple(replace(kind, ops=tuple(map(heavier_op, kind.ops))) for kind in plan.graph.classes)
    heavier = replace(plan, graph=replace(plan.graph, classes=classes))
    assert estimate(heavier).step_seconds >= estimate(plan).step_seconds * (1 - 1e-9)


@FEW
@given(plans())
def test_names_do_not_matter(plan: Plan) -> None:
    renamed = replace(
        plan,
        cluster=replace(cluster(nodes=2, device=replace(FAST, name="other")), name="other"),
        graph=replace(plan.graph, name="other"),
    )
    assert estimate(renamed) == estimate(plan)


@FEW
@given(plans())
def test_devices_of_the_same_kind_and_node_may_be_exchanged(plan: Plan) -> None:
    def turned(device: int) -> int:
        return device // 8 * 8 + (device + 3) % 8

    stages = tuple(replace(s, devices=tuple(map(turned, s.devices))) for s in plan.stages)
    one_node = all(len({d // 8 for s in stages for d in s.devices}) == 1 for _ in stages)
    if one_node:
        moved = estimate(replace(plan, stages=stages)).step_seconds
        assert moved == pytest.approx(estimate(plan).step_seconds, rel=1e-12)


@FEW
@given(chain_graphs(least=2), st.sampled_from(("optimizer", "gradients", "parameters")), st.integers(1, 3))
def test_more_devices_never_take_more_memory_each_for_sharded_state(graph: Graph, kind: Sharding, count: int) -> None:
    def state(replicas: int) -> int:
        sharding: Sharding = kind if replicas > 1 else "none"
        plan = plan_of(graph, cluster(nodes=2), replicas=replicas, microbatches=(48,) * count, sharding=sharding)
        held = estimate(plan).memory[0]
        return held.optimizer + (held.parameters if kind == "parameters" else 0)

    used = [state(replicas) for replicas in (1, 2, 4, 8)]
    assert used == sorted(used, reverse=True)


@pytest.mark.parametrize(("sharding", "parts"), [("none", 1), ("optimizer", 4), ("parameters", 4)])
def test_state_on_the_host_frees_devices_and_takes_link_and_host(sharding: Sharding, parts: int) -> None:
    graph, unclipped = chain_graph([BlockSpec()] * 2), RunSettings(clip_norm=None)
    devices = plan_of(graph, with_host(cluster(per_node=4)), replicas=4, sharding=sharding, run=unclipped)
    hosts = replace(devices, settings=replace(unclipped, offload="optimizer"))
    before, after = estimate(devices), estimate(hosts)
    elements = sum(parameter.elements for parameter in graph.parameters.values()) / parts
    moved = 1e-5 + elements * 4 / (5e10 * 0.8)
    # Gradient, weight and two moments are read, the last three written, of four devices in the host's memory.
    updated = elements * 4 * 7 / (4e11 / 4)
    assert after.seconds.optimizer == pytest.approx(2 * moved + updated)
    assert before.memory[0].optimizer > 0 == after.memory[0].optimizer
    kept = {"optimizer": before.memory[0].optimizer, "at_once": before.memory[0].at_once}
    assert replace(after.memory[0], **kept) == before.memory[0]
    assert before.memory[0].at_once - after.memory[0].at_once >= before.memory[0].optimizer
    assert hosted(costs_of(hosts), hosts) == {0: pytest.approx(4 * elements * (2 * 4 + 4 + 4), abs=64)} and not hosted(
        costs_of(devices), devices
    )


def test_processes_of_a_cpu_have_their_state_on_the_host_already() -> None:
    plan = plan_of(chain_graph([BlockSpec()] * 2), cluster(per_node=4, device=SLOW), replicas=4)
    assert estimate(replace(plan, settings=RunSettings(offload="optimizer"))) == estimate(plan)


def test_a_host_that_is_not_described_is_asked_for() -> None:
    plan = plan_of(
        chain_graph([BlockSpec()] * 2), cluster(per_node=4), replicas=4, run=RunSettings(offload="optimizer")
    )
    with pytest.raises(UsageError, match="add to the node in a cluster file, as in host"):
        estimate(plan)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize(("positions", "microbatches"), [(1, 4), (3, 2), (4, 9)])
def test_kept_activations_and_messages_follow_the_schedule(schedule: str, positions: int, microbatches: int) -> None:
    graph = chain_graph([BlockSpec()] * 12)
    rows = (4,) * microbatches
    plan = plan_of(graph, cluster(), positions=positions, microbatches=rows, schedule=schedule)
    alive = in_flight(actions(schedule, positions, positions, microbatches))
    for position, memory in enumerate(estimate(plan).memory):
        blocks = 12 // positions
        assert memory.activations == alive[position] * blocks * 4 * BlockSpec().saved
        # Of every alive microbatch what came and what went; of one the gradients of both.
        neighbours = (position > 0) + (position < positions - 1)
        assert memory.communication == (alive[position] + 1) * neighbours * 4 * 4 * BlockSpec().output


def test_state_is_counted_by_precision() -> None:
    graph = chain_graph([BlockSpec(parameters=1000)] * 4)
    per_element = {"float32": (4, 4, 8), "float64": (8, 8, 16), "bfloat16": (2, 2, 12), "bfloat16-autocast": (4, 4, 8)}
    for precision, sizes in per_element.items():
        run = RunSettings(precision=precision)  # type: ignore[arg-type]
        memory = estimate(plan_of(graph, cluster(), run=run)).memory[0]
        assert (memory.parameters, memory.gradients, memory.optimizer) == tuple(4000 * size for size in sizes)


def test_tied_parameters_are_counted_once_on_a_stage_and_summed_between_stages() -> None:
    graph = chain_graph([BlockSpec(parameters=1000)] * 4, tied=[(0, 3)])
    assert estimate(plan_of(graph, cluster())).memory[0].parameters == 3 * 4000
    split = plan_of(graph, cluster(), positions=2)
    assert [memory.parameters for memory in estimate(split).memory] == [2 * 4000, 2 * 4000]
    tails = Costs(graph, split.cluster, split.settings).after_backward
    behind, between = (Stage(first=first, last=first + 2, devices=(1,)) for first in (2, 1))
    leading = Mesh(devices=(0,))
    assert tails.tied(behind, leading) == Network(split.cluster).collective("all_reduce", (0, 1), 4000)
    assert tails.tied(between, leading) == 0


def test_recompute_trades_time_for_memory() -> None:
    graph = gpt_graph(layers=8, hidden=1024, sequence=512)
    run = RunSettings(attention="eager")
    kept = estimate(plan_of(graph, cluster(), microbatches=(8,) * 4, run=run))
    again = estimate(plan_of(graph, cluster(), microbatches=(8,) * 4, recompute=True, run=run))
    assert again.memory[0].activations < kept.memory[0].activations / 2
    # Of a layer's 12 h^2 multiplications a token all but those of its last product, 4 h^2, which nothing reads.
    assert again.seconds.recompute == pytest.approx(again.seconds.forward * (12 - 4) / 12, rel=0.3)
    assert again.step_seconds > kept.step_seconds


def test_where_the_host_binds_running_a_layer_again_takes_longer_than_running_it() -> None:
    graph = gpt_graph(layers=8, hidden=256, sequence=128)
    small = estimate(plan_of(graph, cluster(), microbatches=(8,) * 4, recompute=True)).seconds
    assert small.recompute > small.forward


def test_where_the_host_binds_a_backward_takes_longer_and_megatron_core_longer_still() -> None:
    """Of tiny layers, which a device passes at once: shares of the host's seconds for the same ops, where torch's own
    were not measured on a host of the chip."""
    graph = gpt_graph(layers=8, hidden=64, heads=2, sequence=16)
    torch, core = (
        estimate(plan_of(graph, Cluster.load("a100x8"), microbatches=(1,), run=RunSettings(stack=stack))).seconds
        for stack in STACKS
    )
    assert torch.backward / torch.forward == pytest.approx(BACKWARD_SHARE / FORWARD_SHARE)
    assert core.forward / torch.forward == pytest.approx(CORE_SHARES[0])
    assert core.backward / torch.backward == pytest.approx(CORE_SHARES[1])


def test_copies_of_sharded_parameters_and_gradients_show_though_collectives_do_not() -> None:
    """A pass writes and reads all parameters once more, the last backward all gradients: never hidden, on any link."""
    graph = gpt_graph(layers=8, hidden=2048, sequence=2048)
    run = RunSettings(precision="bfloat16")
    kinds: tuple[Sharding, ...] = ("gradients", "parameters")
    spent = [
        estimate(plan_of(graph, Cluster.load("h100x8"), replicas=8, sharding=kind, run=run)).seconds.reduction
        for kind in kinds
    ]
    h100 = Cluster.load("h100x8").devices[0]
    once = 2 * sum(each.elements for each in graph.parameters.values()) * 2 / memory_rate(h100)
    assert spent[0] >= 2 * once
    assert spent[1] - spent[0] >= once


def test_on_processors_nothing_hides_what_sharded_state_says() -> None:
    """Whatever `overlap` allows: every gather, and every scatter with the gradients' sum that gloo makes of it."""
    slow = Link(name="slow", latency_seconds=1e-5, bandwidth=1e9)
    graph, machines = gpt_graph(layers=8, hidden=256), cluster(per_node=4, device=SLOW, inside=slow)
    beside, after = (
        estimate(plan_of(graph, machines, replicas=4, sharding="parameters", run=RunSettings(overlap=overlap)))
        for overlap in (True, False)
    )
    assert beside.seconds == after.seconds
    size, network, every = 4 * sum(each.elements for each in graph.parameters.values()), Network(machines), (0, 1, 2, 3)
    moved = 2 * network.collective("all_gather", every, size) + network.collective("all_reduce", every, size)
    # Out of a buffer of gloo's and out of FSDP2's, twice, and a quarter in twice; gradients in twice, a quarter out.
    copies = (2 * (4 + 1) + 4 + 0.5) * size / memory_rate(SLOW)
    # The hooks of each unit's two gathers and its scatter; no weight is the root's.
    hooks = len(graph.blocks) * (2 * GATHER_HOOKS + SCATTER_HOOKS)
    assert beside.seconds.reduction == pytest.approx(moved + copies + hooks, rel=0.03)


def test_products_with_weights_in_8_bits_take_less_time_and_keep_what_they_read_in_8_bits() -> None:
    graph = gpt_graph(layers=4, hidden=4096, heads=32, sequence=2048)
    sixteen, eight = (
        estimate(plan_of(graph, Cluster.load("h100x8"), run=RunSettings(precision="bfloat16", float8=small)))
        for small in (False, True)
    )
    assert sixteen.seconds.forward / 2 < eight.seconds.forward < sixteen.seconds.forward
    kept = sixteen.memory[0].activations - eight.memory[0].activations
    # Of each token and layer what products read: the norms' results, attention's and the wide one, half of their bytes.
    assert kept == pytest.approx(4 * 8 * 2048 * (4096 + 4096 + 4096 + 4 * 4096), rel=0.2)
    assert eight.memory[0].parameters == sixteen.memory[0].parameters


def test_casts_to_8_bits_take_time_and_the_head_stays_in_16() -> None:
    """An operand is read once and written twice; of a model of one wide layer the head is not faster."""
    graph = gpt_graph(layers=1, hidden=1024, heads=8, sequence=1024, vocabulary=50304)
    settings = RunSettings(precision="bfloat16", float8=True)
    numerics = Numerics.of(graph, settings)
    head = graph.classes[graph.blocks[-1].kind]
    assert all(own.dtype != EIGHT_BITS for own in numerics.ops(head))
    layer = graph.classes[next(b.kind for b in graph.blocks if "layers" in b.name)]
    first = next(own for own in numerics.ops(layer) if own.dtype == EIGHT_BITS)
    captured = ITEM_BYTES["float32"]
    assert first.cast * captured == 2 + 2 * 1


@pytest.mark.parametrize(("name", "inputs"), [("linear", ("i0", "p0", "p1")), ("addmm", ("p1", "i0", "p0"))])
def test_the_gradient_of_a_bias_is_summed_by_a_kernel_that_reads_the_gradient_once_more(
    name: str, inputs: tuple[str, ...]
) -> None:
    """Of a linear layer and of a Conv1D, which says `addmm` and its bias first."""
    made = Tensor(shape=(Affine(0, 1), Affine(1000)), dtype="float32", requires_grad=True)
    with_bias = Op(
        name=name, target=f"aten.{name}.default", kind="matmul", inputs=inputs, outputs=(made,),
        written_bytes=Affine(0, 4000), backward_read_bytes=Affine(0, 4000), backward_written_bytes=Affine(0, 4000),
    )  # fmt: skip
    without = replace(with_bias, target="aten.mm.default", inputs=("i0", "p0"))
    numbers = OpNumerics(dtype="float32", read=1.0, written=1.0, saved=1.0)
    plain, biased = (op_seconds(op, numbers, FAST, RunSettings(), 8).backward for op in (without, with_bias))
    assert biased - plain == pytest.approx(pass_seconds(FAST, 8 * 4000))


def test_a_kernel_with_half_the_rate_takes_attention_longer() -> None:
    graph = gpt_graph(layers=2, hidden=2048, heads=16, sequence=8192)
    first, second = (
        estimate(plan_of(graph, Cluster.load("a100x8"), run=RunSettings(precision="bfloat16", attention=kernel)))
        for kernel in ("flash1", "flash")
    )
    assert first.seconds.forward > second.seconds.forward
    assert first.memory == second.memory


def test_a_chip_without_products_in_8_bits_gains_nothing_from_them() -> None:
    graph = gpt_graph(layers=4, hidden=1024, sequence=1024)
    sixteen, eight = (
        estimate(plan_of(graph, Cluster.load("a100x8"), run=RunSettings(precision="bfloat16", float8=small)))
        for small in (False, True)
    )
    assert eight.seconds.forward == pytest.approx(sixteen.seconds.forward)


def test_flash_attention_keeps_and_moves_less() -> None:
    graph = gpt_graph(layers=4, hidden=1024, heads=16, sequence=2048)
    eager, flash = (
        estimate(plan_of(graph, cluster(), run=RunSettings(precision="bfloat16", attention=kernel)))
        for kernel in ("eager", "flash")
    )
    assert flash.memory[0].activations < eager.memory[0].activations
    assert flash.step_seconds < eager.step_seconds


def test_overlap_hides_reduction_behind_the_backward() -> None:
    graph = gpt_graph(layers=8, hidden=512, sequence=512)
    hidden, shown = (
        estimate(plan_of(graph, cluster(), replicas=4, run=RunSettings(overlap=overlap))) for overlap in (True, False)
    )
    assert hidden.seconds.reduction < shown.seconds.reduction / 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bubble_of_equal_stages_is_the_published_one(schedule: str) -> None:
    """(p-1)/m of the work; divided by v for interleaved; ZB-H1 (F + I - W) (p-1), with F, I, W nearly equal here."""
    free = replace(INSIDE, latency_seconds=0.0, bandwidth=1e30)
    op = {"flops": 10**10, "parameters": 8, "traffic": 8, "output": 1}
    graph = chain_graph([BlockSpec(**op)] * 16)
    positions, count = 4, 16
    plan = plan_of(
        graph, cluster(inside=free), positions=positions, microbatches=(4,) * count, schedule=schedule,
        run=RunSettings(clip_norm=None),
    )  # fmt: skip
    seconds = estimate(plan).seconds
    work = (seconds.forward + seconds.backward) / count
    share = {"interleaved": 1 / 2, "zero-bubble": 1 / 3}.get(schedule, 1.0)
    assert seconds.bubble == pytest.approx((positions - 1) * work * share, rel=0.06)


def test_an_estimate_of_64_stages_takes_about_a_millisecond() -> None:
    graph = gpt_graph(layers=98)
    plan = plan_of(graph, cluster(nodes=8), positions=64, microbatches=(4,) * 128)
    costs = Costs(plan.graph, plan.cluster, plan.settings)
    estimate_with(costs, plan)

    def once() -> float:
        start = process_time()
        estimate_with(costs, plan)
        return process_time() - start

    assert min(once() for _ in range(20)) < 0.003


def test_processors_reduce_a_whole_buffer_to_scatter_it() -> None:
    """What gloo does; NCCL's rings take half of that."""

    def seconds(kind: CollectiveKind, device: Device) -> float:
        return Network(cluster(per_node=4, device=device)).collective(kind, (0, 1, 2, 3), 2.0**30)

    assert seconds("reduce_scatter", SLOW) == seconds("all_reduce", SLOW)
    assert seconds("reduce_scatter", FAST) == pytest.approx(seconds("all_reduce", FAST) / 2)


def test_processors_sum_in_a_ring_whatever_the_size() -> None:
    """As gloo does, and as calibrating takes for granted: seven devices on, twice; NCCL takes a tree for few bytes."""

    def seconds(device: Device) -> float:
        return Network(cluster(device=device)).collective("all_reduce", tuple(range(8)), 8.0)

    once = 7 * INSIDE.latency_seconds + 7 / 8 * 8 / (INSIDE.bandwidth * INSIDE.shared)
    assert seconds(SLOW) == pytest.approx(INSIDE.setup_seconds + 2 * once)
    assert seconds(FAST) < seconds(SLOW)
