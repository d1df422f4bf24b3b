"""Galvatron: expected plans have their expected throughput; the search equals trying every plan of small problems."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import IllegalPlanError, Infeasible, UsageError
from placer.placement.published_planners.galvatron import (
    GalvatronPlan,
    GalvatronProblem,
    GalvatronProfile,
    LayerChoice,
    layer_MB,
    layer_ms,
    value_of,
)
from placer.placement.published_planners.galvatron_cases import CASES, GalvatronCase, case_problem, read_inputs
from placer.strategies.placement.benchmarks import galvatron_rows
from placer.strategies.placement.galvatron import solve_galvatron

INPUTS = "placement/galvatron/test_search_inputs.json"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_expected_plan_has_its_expected_throughput(shared: Path, case: GalvatronCase) -> None:
    value = value_of(case_problem(case, shared / INPUTS), case.plan)
    # the published test asks for 1e-6; its fits of straight lines end at 1e-9
    assert value.throughput == pytest.approx(case.throughput, rel=1e-8)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_reaches_at_least_the_expected_throughput(shared: Path, case: GalvatronCase) -> None:
    problem = case_problem(case, shared / INPUTS)
    found = solve_galvatron(problem, per_layer=case.per_layer)
    assert not isinstance(found, Infeasible)
    assert found.throughput == value_of(problem, found.plan).throughput
    assert found.throughput >= value_of(problem, case.plan).throughput * (1 - 1e-12)
    assert found.throughput >= case.throughput * (1 - 1e-8)


def test_one_layer_more_without_recomputation_does_not_fit(shared: Path) -> None:
    problem, plan = case_problem(CASES[0], shared / INPUTS), CASES[0].plan
    layers = list(plan.layers)
    layers[layers.index(LayerChoice(tensor=4, sharded=True, recompute=True))] = LayerChoice(
        tensor=4, sharded=True, recompute=False
    )
    with pytest.raises(IllegalPlanError, match="MB"):
        value_of(problem, replace(plan, layers=tuple(layers)))


def made(layers: int, memory: float, *, chunks: int = 2) -> GalvatronProblem:
    """Two devices, easy numbers."""
    profile = GalvatronProfile(
        layer_ms=10.0, vocabulary_ms=20.0, layer_weights_MB=100.0, layer_kept_MB={1: 200.0, 2: 100.0},
        layer_checkpoint_MB=20.0, vocabulary_states_MB={1: 400.0, 2: 200.0}, vocabulary_kept_MB={1: 50.0, 2: 25.0},
        near_bandwidth={2: 10.0}, far_bandwidth={2: 10.0}, gather_ms={(2, 4): 1.0}, gather_fit={2: (0.2, 0.2)},
        overlap=1.25,
    )  # fmt: skip
    return GalvatronProblem(
        profile=profile, layers=layers, hidden=1024, sequence=1024, devices=2, memory_MB=memory, batch=4, chunks=chunks
    )


def test_the_time_of_a_layer_is_the_formula() -> None:
    problem = made(1, 10000.0)
    # one device per sample: 10 ms forward, 20 and 10 again backward, half of 2 * 1/2 * 100 / 2 MB gathered at 10 GB/s
    plain, synced = layer_ms(problem, LayerChoice(tensor=1, sharded=True, recompute=True))
    assert plain == pytest.approx(10 + 30 + 2 * 0.5 * 100 / 2 / 2 / 10)
    # 50 MB take 5 ms, slowed down to 6.25 beside backward, of which 6.25 / 1.25 are done meanwhile
    assert synced == pytest.approx(plain + 6.25 - 6.25 / 1.25)
    # both devices on two samples: as long, and 6 allgathers of 4 MB; nothing to reduce
    plain, synced = layer_ms(problem, LayerChoice(tensor=2, sharded=False, recompute=False))
    assert plain == synced == pytest.approx(10 + 20 + 6 * 1.0)


def test_recomputed_and_sharded_layers_are_smaller() -> None:
    problem = made(1, 10000.0)
    ways = list(itertools.product((False, True), repeat=2))
    sizes = {way: layer_MB(problem, LayerChoice(tensor=1, sharded=way[0], recompute=way[1])) for way in ways}
    assert sizes[True, True] < sizes[True, False] < sizes[False, False]
    assert sizes[True, True] < sizes[False, True] < sizes[False, False]


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1300, 4000), st.sampled_from([1, 2]), st.booleans())
def test_the_search_equals_every_plan_of_one_degree(layers: int, memory: int, chunks: int, per_layer: bool) -> None:
    problem = made(layers, float(memory), chunks=chunks)
    best = 0.0
    for tensor, vocabulary, sharded in itertools.product((1, 2), (1, 2), (False, True)):
        choices = [LayerChoice(tensor=tensor, sharded=s, recompute=r) for s in (False, True) for r in (False, True)]
        for chosen in itertools.product(choices, repeat=layers):
            alike = len(set(chosen)) == 1 and vocabulary == tensor and chosen[0].sharded == sharded
            if per_layer or alike:
                plan = GalvatronPlan(layers=chosen, vocabulary_tensor=vocabulary, vocabulary_sharded=sharded)
                try:
                    best = max(best, value_of(problem, plan).throughput)
                except IllegalPlanError:
                    continue
    found = solve_galvatron(problem, per_layer=per_layer)
    if isinstance(found, Infeasible):
        assert best == 0.0
    else:
        assert found.throughput == pytest.approx(best, rel=1e-12)


def test_a_plan_of_too_few_layers_is_refused() -> None:
    plan = GalvatronPlan(layers=(), vocabulary_tensor=1, vocabulary_sharded=False)
    with pytest.raises(IllegalPlanError, match="0 layers of 2"):
        value_of(made(2, 10000.0), plan)


def test_a_file_without_the_inputs_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="no inputs of Galvatron's test"):
        read_inputs(tmp_path / "x.json", 8192)


def test_both_searches_are_rows_of_the_bench(shared: Path) -> None:
    found = list(galvatron_rows(shared / "placement"))
    assert [row.problem for row in found] == [case.name for case in CASES]
    assert all(row.value is not None and row.known is not None and row.value <= row.known * (1 + 1e-9) for row in found)
