"""The integer program of splits against every assignment of choices, and the search over layouts against all plans."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from placer.cluster.cluster import Cluster
from placer.costs.compute.gradient_kernels import gradient_seconds
from placer.costs.compute.roofline import op_seconds
from placer.costs.costs import Costs
from placer.costs.timing.block import BlockTimes
from placer.errors import InfeasibleError
from placer.graph import BlockClass
from placer.plans.plan import Layout, Split
from placer.plans.settings import RunSettings
from placer.rules.layouts import SHARED, Cut
from placer.search.judge import solve_with
from placer.search.problem import Pins, Problem
from placer.spmd.device_graph import local_graph
from placer.spmd.layout_conversions import edges
from placer.strategies.intra_op.block_ilp import Border, BorderStates, best_of, best_split, block_program
from placer.strategies.intra_op.layouts import layouts
from placer.strategies.intra_op.split_costs import TIE, SplitCosts, SplitReplica
from problems import device, nodes, problem
from split_blocks import chain_of, mlp, random_chain, seconds_of

WHOLE = Border(inputs=("whole",), outputs=("whole",))
CUT = Border(inputs=("cut 1",), outputs=("cut 1",))
MIXED = Border(inputs=("cut 1",), outputs=("whole",))
WAYS = ("whole", "cut 1")
SETTINGS = RunSettings(fusion=False, clip_norm=None)


def machines(count: int = 2) -> Cluster:
    return nodes(device(rate=1e11, bandwidth=1e10), per_node=count, count=1)


def prices(kind: BlockClass, degree: int = 2, **how: float) -> SplitCosts:
    costs = Costs(chain_of([kind], [0]), machines(degree), SETTINGS)
    replica = SplitReplica(devices=tuple(range(degree)), rows=4)
    return SplitCosts(costs=costs, kind=kind, replica=replica, byte=max(how.get("byte", 0.0), TIE))


@pytest.mark.in_turns
@pytest.mark.parametrize("border", [WHOLE, CUT], ids=["whole", "cut"])
@pytest.mark.parametrize("byte", [0.0, 1e-9])
@pytest.mark.parametrize("inner", [16, 512])
def test_no_assignment_of_choices_is_cheaper_than_the_split_found(border: Border, byte: float, inner: int) -> None:
    kind = mlp(inner=inner, width=64, residual=inner == 16)
    given = prices(kind, byte=byte)
    options = [[choice.name for choice in given.choices(index)] for index in range(len(kind.ops))]
    every = (
        seconds_of(kind, Split(choices=names, inputs=border.inputs, outputs=border.outputs), given)
        for names in itertools.product(*options)
    )
    best = min(seconds for seconds in every if seconds is not None)
    found = best_split(kind, border, given)
    assert found is not None
    assert found.seconds == pytest.approx(best, rel=1e-9)
    assert seconds_of(kind, found.split, given) == pytest.approx(best, rel=1e-9)


def test_a_program_made_once_serves_all_borders_whatever_bytes_and_steps_are_worth() -> None:
    kind = mlp(inner=512, width=64)
    made = prices(kind)
    program = block_program(kind, BorderStates(inputs=(WAYS,), outputs=(WAYS,)), made)
    found = set()
    worths = ((0.0, 8, 0), (1e-9, 8, 0), (0.0, 1, 0), (1e-9, 8, 4), (0.0, 8, 0))
    for (byte, microbatches, once), border in itertools.product(worths, (WHOLE, CUT, MIXED, WHOLE)):
        weighed = made.weighing(byte, microbatches, once)
        served, alone = best_of(program, border, weighed), best_split(kind, border, weighed)
        assert served is not None
        assert alone is not None
        assert served.seconds == pytest.approx(alone.seconds, rel=1e-12)
        assert seconds_of(kind, served.split, weighed) == pytest.approx(alone.seconds, rel=1e-12)  # if another as good
        found.add(served.split)
    assert len(found) > 5


def test_a_wide_mlp_is_cut_as_megatron_cuts_it() -> None:
    kind = mlp(length=4, inner=4096, width=1024)
    found = best_split(kind, WHOLE, prices(kind, byte=1e-11))
    assert found is not None
    assert found.split.choices[1:4] == ("n", "dim 2", "k")
    made = edges(kind, found.split)
    assert [state.value for state in made.parameters[1:]] == [Cut(0), Cut(1)]


def test_the_local_graph_holds_its_share_of_flops_and_parameters() -> None:
    kind = mlp(length=4, inner=4096, width=1024)
    found = best_split(kind, WHOLE, prices(kind, byte=1e-11))
    assert found is not None
    graph = chain_of([kind], [0])
    local = local_graph(graph, Layout(degree=2, splits=(None, found.split)))
    assert local.forward_flops * 2 == graph.forward_flops
    assert local.backward_flops * 2 == graph.backward_flops
    weights = [p.elements for p in local.classes[1].parameters]
    assert weights == [1024, 4096 * 1024 // 2, 1024 * 4096 // 2]


def test_collectives_inside_a_replica_cost_what_the_cluster_says() -> None:
    kind = mlp(length=4, inner=4096, width=1024)
    found = best_split(kind, WHOLE, prices(kind, byte=1e-11))
    assert found is not None
    graph, cluster = chain_of([kind], [0]), machines()
    costs = Costs(graph, cluster, SETTINGS).under(Layout(degree=2, splits=(None, found.split)))
    profile: BlockTimes = costs.block_times
    kind = costs.graph.classes[1]
    moved = [
        costs.network.collective(word, (0, 1), size.at(4))  # type: ignore[arg-type]
        for op in kind.ops
        if op.kind == "communication"
        for word, size in zip(op.target.split(".")[1:], (op.written_bytes, op.backward_written_bytes), strict=True)
        if word != "-"
    ]
    block = profile.block(1, 0, 4)
    assert sum(moved) > 0
    added = gradient_seconds(kind, costs.numerics, cluster.devices[0], costs.settings, 4, {})
    assert block.forward + block.backward == pytest.approx(sum(op_times(costs, kind)) + sum(moved) + added, rel=1e-9)


def op_times(costs: Costs, kind: BlockClass) -> list[float]:
    chip, numbers = costs.cluster.devices[0], costs.numerics.ops(kind)
    each = [op_seconds(op, n, chip, costs.settings, 4) for op, n in zip(kind.ops, numbers, strict=True)]
    return [busy.forward + busy.backward for busy in each]


def random_split_problem(seed: int) -> Problem:
    rng = random.Random(seed)
    graph = random_chain(rng)
    state = 4 * graph.parameter_bytes + graph.saved_bytes // graph.rows
    chip = device(memory=int(state * 10 ** rng.uniform(-0.5, 0.5)), rate=10 ** rng.uniform(9, 11), bandwidth=1e10)
    cluster = nodes(chip, per_node=2, count=rng.choice((1, 2)))
    settings = RunSettings(clip_norm=rng.choice((None, 1.0)), overlap=rng.random() < 0.7)
    pins = rng.choice((Pins(), Pins(), Pins(tensor=2), Pins(tensor=1)))
    return problem(graph, cluster, settings=settings, rows=rng.randint(1, 3), pins=pins, seed=seed)


def unequal_split_problem(seed: int) -> Problem:
    """The same on two kinds of node, of which one may have a single device, which is no replica of two. Of four devices
    recompute is fixed: its choices by stage make more plans than an enumeration takes."""
    given, rng = random_split_problem(seed), random.Random(seed)
    chip = given.cluster.devices[0]
    node = given.cluster.groups[0][0]
    other = replace(chip, name="other", rates=(("float32", chip.rate("float32") * rng.uniform(0.3, 0.9)),))
    alone = rng.choice((True, False))
    second = replace(node, name="second", devices=((other, 1 if alone else 2),))
    groups = ((second, 1), (node, 1)) if rng.random() < 0.5 else ((node, 1), (second, 1))
    settings = given.settings if alone else replace(given.settings, recompute=rng.choice(("none", "selective", "full")))
    return replace(given, cluster=replace(given.cluster, groups=groups), settings=settings)


@pytest.mark.parametrize(("made", "seeds"), [(random_split_problem, 30), (unequal_split_problem, 12)])
def test_the_search_over_layouts_finds_the_value_of_the_enumeration(made: Callable[[int], Problem], seeds: int) -> None:
    split = infeasible = 0
    for seed in range(seeds):
        given = made(seed)
        try:
            wanted = solve_with(given, "exhaustive").plan
        except InfeasibleError:
            infeasible += 1
            with pytest.raises(InfeasibleError):
                solve_with(given, "stages")
            continue
        found = solve_with(given, "stages")
        assert wanted.ledger is not None and found.plan.ledger is not None
        assert found.plan.ledger.step_seconds == pytest.approx(wanted.ledger.step_seconds, rel=1e-9), seed
        assert found.bound == pytest.approx(wanted.ledger.step_seconds, rel=1e-9), seed
        split += found.plan.stages[0].degree > 1
    assert split >= seeds // 6
    assert infeasible <= seeds // 2


def test_what_fits_in_no_node_is_cut_over_several_unless_an_axis_is_pinned() -> None:
    graph = chain_of([mlp(width=64, inner=4096)], [0])
    chip = device(memory=5 * graph.parameter_bytes // 4)  # four times that with gradients and moments
    given = problem(graph, nodes(chip, per_node=2, count=2), pins=Pins(shard="none"))
    found, wanted = solve_with(given, "stages"), solve_with(given, "exhaustive")
    assert found.plan.stages[0].degree == 4
    assert found.plan.ledger is not None and wanted.plan.ledger is not None
    assert found.bound == pytest.approx(found.plan.ledger.step_seconds, rel=1e-9)
    assert found.plan.ledger.step_seconds == pytest.approx(wanted.plan.ledger.step_seconds, rel=1e-9)
    with pytest.raises(InfeasibleError, match="memory"):
        solve_with(replace(given, pins=Pins(shard="none", height=1)), "stages")


def test_a_parameter_every_rank_uses_for_its_part_is_summed_once_a_step() -> None:
    kind = mlp(length=64, inner=64, width=64, residual=False)
    names = ("dim 1", "lead 1", "dim 1", "lead 1")
    made = edges(kind, Split(choices=names, inputs=CUT.inputs, outputs=CUT.outputs))
    assert not made.conversions
    assert made.parameters == (SHARED, SHARED, SHARED)


def test_layouts_cut_something_and_say_along_what() -> None:
    given = random_split_problem(1)
    found = layouts(given, Costs(given.graph, given.cluster, given.settings))
    for layout in found:
        assert layout.axis == "tensor" and layout.degree == 2
        assert any(name not in ("whole", "deferred") for split in layout.splits if split for name in split.choices)


def test_the_same_problem_gives_the_same_plan_byte_for_byte() -> None:
    for seed in (1, 5, 9):
        given = random_split_problem(seed)
        try:
            found = [solve_with(replace(given, budget=20), "auto").plan.to_json() for _ in range(2)]
        except InfeasibleError:
            continue
        assert found[0] == found[1]
