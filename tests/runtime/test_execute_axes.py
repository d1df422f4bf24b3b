"""Replicas whose devices have rows, experts or tokens of their own equal eager torch on one device."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import split_runs
from examples.parity.cases import Case, plan_of
from placer.legality import check
from placer.plans.plan import Plan
from placer.program.agreement import agreement
from placer.program.lowering import lower
from placer.search.problem import Pins
from pool import on_ranks
from split_plans import searched_plans

pytestmark = pytest.mark.in_turns

EVEN = (4, 4)
# The product of experts knows no float64.
MIXTRAL = Case(model="examples.models:tiny_mixtral", precision="float32", microbatches=EVEN)
QWEN = Case(model="examples.models:tiny_qwen3_moe", precision="float32", microbatches=EVEN)
GPT_OSS = Case(model="examples.models:tiny_gpt_oss", precision="float32", microbatches=EVEN)
GPT2 = Case(model="examples.models:tiny_gpt2")
LLAMA = Case(model="examples.models:tiny_llama")
LOADS = (1.0, 5.0, 2.0, 9.0)
TWO, FOUR, TOKENS = Pins(expert=2), Pins(expert=4), Pins(sequence=2)
CASES = [
    (MIXTRAL, 2, TWO, ()),
    (replace(MIXTRAL, microbatches=(4, 8)), 4, FOUR, ()),
    (replace(MIXTRAL, replicas=2), 2, TWO, LOADS),
    (
        replace(MIXTRAL, replicas=2, shares=(3, 1), microbatches=(8, 2)),
        2,
        TWO,
        (),
    ),  # a replica without rows
    (replace(MIXTRAL, positions=2, schedule="zero-bubble"), 2, TWO, LOADS),
    (replace(MIXTRAL, replicas=2, sharding="parameters"), 2, TWO, ()),
    (QWEN, 2, TWO, ()),
    (GPT_OSS, 2, TWO, ()),
    (replace(GPT_OSS, replicas=2, microbatches=(5, 3)), 2, Pins(tensor=2), ()),
    (GPT2, 2, TOKENS, ()),
    (replace(GPT2, positions=2, recompute=True), 2, TOKENS, ()),
    (LLAMA, 2, TOKENS, ()),
    (replace(LLAMA, replicas=2), 2, TOKENS, ()),
]


@cache
def plan(case: Case, degree: int, pins: Pins, loads: tuple[float, ...]) -> Plan:
    """The plan of a case with the fastest layout the search finds."""
    return searched_plans(case, degree, pins, loads)[0]


@pytest.mark.parametrize(("case", "degree", "pins", "loads"), CASES, ids=str)
def test_the_plan_equals_the_reference_run(case: Case, degree: int, pins: Pins, loads: tuple[float, ...]) -> None:
    made = plan(case, degree, pins, loads)
    assert check(made) == ()
    assert agreement(lower(made)) == ()
    reports = on_ranks(made.world_size, split_runs.equal, made, 2)
    assert reports[0].passed, str(reports[0])
    assert {c.quantity for c in reports[0].comparisons} >= {"loss", "gradients", "parameters", "evaluation"}
    assert all(other == reports[0] for other in reports)


def test_weights_of_placed_experts_may_be_cut_along_another_dim_first() -> None:
    made = plan(MIXTRAL, 2, TWO, LOADS)
    target, found = "aten.transpose.int", 0
    splits = list(made.layouts[0].splits)
    for number, (kind, split) in enumerate(zip(made.graph.classes, splits, strict=True)):
        if split is not None and split.experts:
            turned = [at for at, op in enumerate(kind.ops) if op.target == target and op.inputs[0].startswith("p")]
            choices = list(split.choices)
            for at in turned:
                choices[at] = "dim 2"
            splits[number], found = replace(split, choices=tuple(choices)), found + len(turned)
    other = replace(made, layouts=(replace(made.layouts[0], splits=tuple(splits)),))
    assert found and other != made
    reports = on_ranks(made.world_size, split_runs.equal, other, 1)
    assert reports[0].passed, str(reports[0])


def test_each_rank_holds_its_experts_and_all_of_the_rest() -> None:
    first, second = on_ranks(2, split_runs.held, plan(MIXTRAL, 2, TWO, ()))
    assert first == second
    whole = {name: parameter.shape for name, parameter in plan(MIXTRAL, 2, TWO, ()).graph.parameters.items()}
    for name, shape in first.items():
        experts = ".experts." in name
        assert shape == ((whole[name][0] // 2, *whole[name][1:]) if experts else whole[name]) or "embed" in name


def test_checkpoints_of_placed_experts_go_on_under_other_layouts(tmp_path: Path) -> None:
    placed = plan(MIXTRAL, 2, TWO, LOADS)
    assert any(split and split.experts for split in placed.layouts[0].splits)
    for other in (plan(MIXTRAL, 2, TWO, ()), plan_of(replace(MIXTRAL, replicas=2))):
        other = replace(other, settings=placed.settings)
        folder = str(tmp_path / f"{len(other.layouts)}")
        for before, after in on_ranks(2, split_runs.resumed, placed, other, folder):
            assert after == pytest.approx(before, rel=1e-5)


def test_rows_that_devices_cannot_share_evenly_are_illegal() -> None:
    made = replace(plan(MIXTRAL, 2, TWO, ()), microbatches=(5, 3))
    assert [violation.rule for violation in check(made)] == ["rows"]
    assert "give each replica a multiple of 2 rows" in check(made)[0].message
