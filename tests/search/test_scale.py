"""What is done once for what is alike gives what doing it for each gives; and how growth is measured."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from examples.measured.sweep import Growth, fitted_exponent
from graphs import BlockSpec, chain_graph
from placer.costs.costs import Costs
from placer.costs.memory.in_flight import in_flight_peaks
from placer.errors import InfeasibleError
from placer.legality import check
from placer.plans.plan import Plan
from placer.plans.schedule import actions, in_flight
from placer.program.agreement import agreement
from placer.program.instructions import Collective, Instruction, Message
from placer.program.lowering import like_devices, lower
from placer.search.judge import solve_with
from placer.search.problem import Pins
from placer.strategies.inter_op.bounds.by_bound import by_bound
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.refined import RefinedBounds
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.intra_op.linear_program import LinearProgram
from problems import device, nodes, problem
from split_blocks import random_chain


def split_plan(seed: int) -> Plan:
    """A plan whose replicas are two devices, if the model has one."""
    rng = random.Random(seed)
    cluster = nodes(device(rate=1e11, bandwidth=1e10), per_node=2, count=rng.choice((1, 2)))
    pins = Pins(tensor=2, pipeline=rng.choice((1, 2)) if cluster.size > 2 else None)
    try:
        return solve_with(problem(random_chain(rng), cluster, rows=rng.randint(2, 4), pins=pins), "stages").plan
    except InfeasibleError:
        assume(False)
        raise


def without_ranks(entry: Instruction, size: int) -> Instruction:
    """An instruction that names replicas where it named ranks."""
    if isinstance(entry, Message):
        return replace(entry, peer=entry.peer // size)
    if isinstance(entry, Collective):
        return replace(entry, ranks=tuple(sorted({rank // size for rank in entry.ranks})))
    return entry


@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_programs_of_like_devices_differ_in_ranks_only(seed: int) -> None:
    plan = split_plan(seed)
    size = plan.stages[0].degree
    for devices in like_devices(plan):
        own = [program for program in lower(plan) if program.inner in devices and program.replica == 0]
        for program in own:
            leader = next(p for p in own if p.inner == devices[0] and p.stages == program.stages)
            lines = [[without_ranks(entry, size) for entry in each.instructions] for each in (program, leader)]
            assert lines[0] == lines[1]


@settings(max_examples=12)
@given(st.integers(0, 10_000))
def test_a_plan_judged_by_classes_of_devices_is_judged_as_device_by_device(seed: int) -> None:
    plan = split_plan(seed)
    assert agreement(lower(plan)) == ()
    assert check(plan) == ()
    assert [program for program in lower(plan) if program.inner == 0] == list(lower(plan, inners=[0]))


def counted(name: str, positions: int, stages: int, microbatches: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """`alive` from the action lists themselves: peaks of each position that no other one exceeds."""
    for line in actions(name, positions, stages, microbatches):
        counts, found = [0] * (stages // positions), set[tuple[int, ...]]()
        freeing = "W" if any(action.kind == "W" for action in line) else "B"
        for action in line:
            counts[action.stage // positions] += (action.kind == "F") - (action.kind == freeing)
            found.add(tuple(counts))
        yield tuple(
            sorted(
                a for a in found if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in found)
            )
        )


@settings(max_examples=60)
@given(st.sampled_from(["gpipe", "1f1b", "zero-bubble", "interleaved"]), st.data())
def test_alive_microbatches_are_those_of_the_schedules_own_lists(name: str, data: st.DataObject) -> None:
    positions, microbatches = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 20))
    stages = positions * (data.draw(st.integers(2, 4)) if name == "interleaved" else 1)
    assert in_flight_peaks(name, positions, stages, microbatches) == tuple(
        counted(name, positions, stages, microbatches)
    )
    if stages == positions:
        most = in_flight(actions(name, positions, stages, microbatches))
        assert most == tuple(peaks[-1][0] for peaks in in_flight_peaks(name, positions, stages, microbatches))


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_the_second_bound_is_the_same_whatever_was_asked_before(seed: int) -> None:
    rng = random.Random(seed)
    asked_of = problem(random_chain(rng), nodes(device(), per_node=2, count=2), rows=4)
    bounds = OutlineBounds(asked_of, RangeClasses(asked_of, Costs(asked_of.graph, asked_of.cluster, asked_of.settings)))
    asked = RefinedBounds(bounds)
    for _, outline in by_bound({-1: bounds}).outlines:
        places = PositionClasses(asked_of, bounds.ranges.costs, outline)
        assert asked.step(outline, places) == RefinedBounds(bounds).step(outline, places)


def test_a_linear_program_given_as_arrays_has_its_optimum() -> None:
    # maximise x + 2 y with x + y <= 3, y <= 2: x = 1, y = 2; as whole numbers with x + y <= 2.5: x = 0, y = 2.
    from ortools.math_opt.python import mathopt

    for most, solver, x_is in ((3.0, mathopt.SolverType.GLOP, 1.0), (2.5, mathopt.SolverType.GSCIP, 0.0)):
        made = LinearProgram()
        x, y = made.variable(5.0), made.variable(2.0)
        made.constrain([(x, 0.5), (y, 1.0), (x, 0.5)], 0.0, most)
        made.spend(x, -1.0)
        made.spend(y, -2.0)
        found = made.solve(solver, whole=(x, y) if solver == mathopt.SolverType.GSCIP else ())
        assert found is not None
        assert found.variables == pytest.approx([x_is, 2.0])
        assert found.value == pytest.approx(-x_is - 4.0)
    impossible = LinearProgram()
    impossible.constrain([(impossible.variable(), 1.0)], 2.0, 3.0)
    assert impossible.solve(mathopt.SolverType.GLOP) is None


def test_a_linear_program_that_glop_calls_imprecise_has_its_optimum() -> None:
    # A host that takes 26.6 times as long as the dearest choice, beside ties a million million times smaller.
    from ortools.math_opt.python import mathopt

    program = LinearProgram()
    x = [program.variable(1.0) for _ in range(9)] + [program.variable(math.inf)]
    ties = [1.3747594171020073e-09, 3.436898542755018e-10, 1.3747594171020073e-09]
    more = [1.4077536431124555e-06, 1.4077536431124555e-06, 3.5193841077811386e-07]
    for variable, cost in (*zip(x, ties + more, strict=False), (x[8], 500.0), (x[9], 487.9682140775936)):
        program.spend(variable, cost)
    program.constrain([(each, 1.0) for each in x[:3]], 1.0, 1.0)
    program.constrain([(each, 1.0) for each in x[3:6]], 1.0, 1.0)
    program.constrain([(x[7], 1.0), (x[8], -1.0)], -math.inf, 0.0)
    program.constrain([(x[0], -1.0), (x[6], 1.0), (x[7], 1.0)], 0.0, 0.0)
    busy = (0.36658882728961567, 0.3557703436069218, 0.36658882728961567, 1.0, 1.0, 0.9992510568582419)
    program.constrain([*((v, -b) for v, b in zip(x, busy, strict=False)), (x[9], 1.0)], 0.0, math.inf)
    program.constrain([(x[8], -1.8999257639366323), (x[9], 1.0)], 26.59896069511285, math.inf)
    found = program.solve(mathopt.SolverType.GLOP)
    assert found is not None
    assert found.value == pytest.approx(487.9682140775936 * 26.59896069511285)


def test_a_block_that_no_device_holds_is_named_with_what_it_needs() -> None:
    graph = chain_graph([BlockSpec(), BlockSpec(saved=2**31), BlockSpec()])
    with pytest.raises(InfeasibleError, match=r"block .*1 needs .* GiB of .* GiB even alone"):
        solve_with(problem(graph, nodes(device(memory=2**30), per_node=2, count=2), rows=2), "stages")


@pytest.mark.in_turns
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.3])
def test_a_power_law_is_fitted_exactly(exponent: float) -> None:
    sizes = (2, 4, 32, 512)
    assert fitted_exponent(sizes, [3.0 * size**exponent for size in sizes]) == pytest.approx(exponent)
    assert f"layers ** {exponent:.2f}" in str(
        Growth(what="layers", sizes=sizes, seconds=tuple(3.0 * size**exponent for size in sizes))
    )


def test_one_size_fits_no_exponent() -> None:
    assert fitted_exponent((8,), (2.0,)) == 0.0
