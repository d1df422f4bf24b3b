"""Aceso: the evaluator gives published plans their published figures; ours are legal, fit, and are never slower."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import IllegalPlanError, Infeasible, UsageError
from placer.placement.published_planners.aceso import AcesoPlan, AcesoProblem, AcesoStage, step_of
from placer.placement.published_planners.aceso_cases import (
    CASES,
    MEMORY_MB,
    AcesoCase,
    case_problem,
    full_ops,
    published_plan,
)
from placer.placement.published_planners.aceso_layouts import resharding
from placer.placement.published_planners.aceso_profile import AcesoProfile, OpCost, read_profile
from placer.strategies.engine.chain_cuts import best_cuts
from placer.strategies.placement.aceso.search import solve_aceso
from placer.strategies.placement.benchmarks import aceso_row

MINI = "placement/aceso/profiled-time-miniset"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_evaluator_gives_the_published_plan_its_published_time(shared: Path, case: AcesoCase) -> None:
    value = step_of(case_problem(case, shared / MINI), published_plan(case))
    assert value.milliseconds == pytest.approx(case.predicted_ms, abs=0.006)
    assert value.peak_MB <= MEMORY_MB


@pytest.mark.parametrize(
    ("family", "size", "batch", "microbatch", "layers", "known"),
    [
        # results/ref/perf_model_*.csv of the artifact: predicted seconds, megabytes without and of the workspace
        ("gpt", "350M", 1024, 8, 24, (200.71, 14592, 5120)),
        ("resnet", "500M", 1536, 64, 0, (67.13, 16519, 3432)),
    ],
)
def test_plans_of_one_device_have_their_published_time_and_memory(
    shared: Path, family: str, size: str, batch: int, microbatch: int, layers: int, known: tuple[float, int, int]
) -> None:
    profile = read_profile(shared / "placement/aceso/profiled-time-eurosys", f"{family}_{size}")
    ops = full_ops(family, profile.ops, layers)
    problem = AcesoProblem(
        family=family, ops=ops, profile=profile, devices=1, devices_per_node=1, memory_MB=28000.0,
        global_batch=batch, microbatches=(microbatch,),
    )  # fmt: skip
    kept = {"encoder-embedding", "gpt-post-process"}
    ones = (1,) * len(ops)
    again = tuple(op not in kept for op in ops)
    stage = AcesoStage(tensor=ones, data=ones, algo=(0,) * len(ops), recompute=again)
    value = step_of(problem, AcesoPlan(microbatch=microbatch, stages=(stage,)))
    assert value.milliseconds / 1000 == pytest.approx(known[0], rel=0.003)
    assert value.memory[0].normal == pytest.approx(known[1], abs=1)
    assert value.memory[0].reserved == known[2]


@pytest.mark.in_turns
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_ours_is_never_slower_than_the_published_plan(shared: Path, case: AcesoCase) -> None:
    problem = case_problem(case, shared / MINI)
    found = solve_aceso(problem)
    assert not isinstance(found, Infeasible)
    value = step_of(problem, found.plan)
    assert value.milliseconds == found.milliseconds
    assert value.peak_MB <= MEMORY_MB * (1 + 1e-9)
    assert found.bound <= found.milliseconds <= step_of(problem, published_plan(case)).milliseconds


@pytest.mark.in_turns
def test_the_row_of_t5_beats_the_published_plan(shared: Path) -> None:
    case = next(case for case in CASES if case.family == "t5")
    found = aceso_row(shared / MINI, case)
    assert found.value is not None and found.known is not None and found.bound is not None
    assert found.bound <= found.value <= found.known


def cost(samples: int, forward: float, backward: float, *, weights: float = 0.0, kept: float = 1.0) -> OpCost:
    return OpCost(
        samples=samples, forward_us=forward, backward_us=backward, input_MB=1.0, output_MB=1.0, weights_MB=weights,
        activations_MB=kept, forward_reserved_MB=0.5, backward_reserved_MB=0.5,
    )  # fmt: skip


def made(times: list[int], kept: list[int], *, memory: float, devices: int = 2) -> AcesoProblem:
    """Ops in a row without layers, measured at one and two samples, split in two at 0.6 of the time."""
    ops = tuple(f"relu-{i}" for i in range(len(times)))
    costs = {
        (op, b, t, 0): cost(
            b, 400.0 * x * b * (1 if t == 1 else 0.6), 1000.0 * x * b / t, weights=2 / t, kept=k * b / t
        )
        for op, x, k in zip(ops, times, kept, strict=True)
        for b, t in itertools.product((1, 2), (1, 2))
    }
    profile = AcesoProfile(
        ops=ops, costs=costs, collectives={("all_gather", 2): {1: 0.2}}, within_node=(10.0,), between_nodes=(10.0,)
    )
    return AcesoProblem(
        family="resnet", ops=ops, profile=profile, devices=devices, devices_per_node=devices, memory_MB=memory,
        global_batch=8, microbatches=(1, 2),
    )  # fmt: skip


def every_plan(problem: AcesoProblem) -> list[AcesoPlan]:
    """Every plan of two devices, all states of all ops."""
    count, plans = len(problem.ops), list[AcesoPlan]()

    def stages(devices: int, length: int, microbatch: int) -> list[AcesoStage]:
        shapes = [(t, devices // t) for t in (1, 2) if devices % t == 0 and microbatch % (devices // t) == 0]
        states = list(itertools.product(shapes, (False, True)))
        return [
            AcesoStage(
                tensor=tuple(s[0][0] for s in chosen),
                data=tuple(s[0][1] for s in chosen),
                algo=(0,) * length,
                recompute=tuple(s[1] for s in chosen),
            )
            for chosen in itertools.product(states, repeat=length)
        ]

    for microbatch in problem.microbatches:
        plans += [AcesoPlan(microbatch=microbatch, stages=(s,)) for s in stages(2, count, microbatch)]
        for cut in range(1, count):
            halves = stages(1, cut, microbatch), stages(1, count - cut, microbatch)
            plans += [AcesoPlan(microbatch=microbatch, stages=pair) for pair in itertools.product(*halves)]
    return plans


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=2, max_size=3), st.integers(10, 60))
def test_on_small_problems_the_bound_holds_and_the_plan_is_near_the_best(
    ops: list[tuple[int, int]], memory: int
) -> None:
    problem = made([x for x, _ in ops], [k for _, k in ops], memory=float(memory))
    values = [step_of(problem, plan) for plan in every_plan(problem)]
    best = min((v.milliseconds for v in values if v.peak_MB <= problem.memory_MB), default=np.inf)
    found = solve_aceso(problem)
    if isinstance(found, Infeasible):
        assert best == np.inf
    else:
        assert found.bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= found.milliseconds <= best * 1.1


def test_cuts_minimise_the_maximum_times_all_but_one_plus_the_sum() -> None:
    random = np.random.default_rng(1)
    tables = tuple(np.triu(random.random((6, 6)), 1) for _ in range(3))
    tables = tuple(np.where(table == 0, np.inf, table) for table in tables)
    ways = [(a, b, 5) for a in range(1, 5) for b in range(a + 1, 5)]
    values = []
    for way in ways:
        parts = [t[a, b] for t, a, b in zip(tables, (0, *way), way, strict=False)]
        values.append(9 * max(parts) + sum(parts))
    step, cuts = best_cuts(tables, 10)
    assert step == pytest.approx(min(values)) and cuts == ways[int(np.argmin(values))]


def test_a_plan_that_leaves_ops_out_is_refused() -> None:
    problem = made([1, 2, 3], [1, 1, 1], memory=100.0)
    stage = AcesoStage(tensor=(1, 1), data=(1, 1), algo=(0, 0), recompute=(False, False))
    with pytest.raises(IllegalPlanError, match="2 of 3 ops"):
        step_of(problem, AcesoPlan(microbatch=1, stages=(stage,)))


def test_a_plan_that_uses_what_was_not_measured_is_never_chosen() -> None:
    problem = made([1, 2], [1, 1], memory=100.0)
    plan = AcesoPlan(
        microbatch=4, stages=(AcesoStage(tensor=(1, 1), data=(1, 1), algo=(0, 0), recompute=(False, False)),)
    )
    assert step_of(replace(problem, microbatches=(4,)), plan).milliseconds > 1000


def test_neighbours_of_one_layout_send_nothing_and_others_what_they_must() -> None:
    assert resharding(("relu", 2, 1, 0), ("conv", 2, 1, 1)) is None
    split = resharding(("relu", 2, 1, 0), ("conv", 1, 2, 0))
    assert split is not None and (split.forward, split.backward, split.devices) == ("split", "all_gather", 2)
    gather = resharding(("relu", 1, 2, 0), ("conv", 2, 1, 0))
    assert gather is not None and (gather.forward, gather.backward, gather.devices) == ("all_gather", "split", 2)


def test_a_folder_without_measurements_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no measurements of gpt_9B"):
        read_profile(tmp_path, "gpt_9B")
