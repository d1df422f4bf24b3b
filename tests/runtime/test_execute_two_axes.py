"""Replicas whose devices are a mesh of two axes equal eager torch on one device: loss, gradients, parameters."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import split_runs
from examples.parity import models as parity_models
from examples.parity.cases import Case
from examples.parity.named_splits import Picker, split_plan
from placer.errors import UsageError
from placer.legality import check
from placer.plans.plan import Plan
from placer.program.agreement import agreement
from placer.program.lowering import lower
from placer.rules.layouts import Both
from placer.runtime.dry import dry_run
from placer.spmd.device_graph import local_graph
from placer.spmd.parameter_layouts import parameter_states
from pool import on_ranks
from split_pickers import case_id, columns_and_rows, convolutions, loss_by, nothing, rows_of_the_sequence
from split_plans import random_twice, twice_split_plan

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = Case(model="examples.parity.models:dropping_words", shapes=parity_models.TEXT)
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES)
HEIGHT, WIDTH = convolutions("space 0"), convolutions("space 1")
CENTRED = Case(
    model="execute_models:CentredWords", shapes=(("x", (8, 4, 8)), ("y", (8, 4))), replicas=1, microbatches=(8,)
)
TILES = "cut 2 / cut 3"
SEQUENCE = rows_of_the_sequence(nothing)
CASES = [
    (IMAGES, (2, 2), (HEIGHT, WIDTH), TILES),
    (IMAGES, (3, 2), (WIDTH, HEIGHT), "cut 3 / cut 2"),
    (WORDS, (2, 2), (SEQUENCE, columns_and_rows), "cut 1 / whole"),
    (DROPPING, (2, 2), (SEQUENCE, columns_and_rows), "cut 1 / whole"),
    (CENTRED, (2, 2), (loss_by("classes"), loss_by("space 0")), "whole / whole"),
    (CENTRED, (2, 2), (loss_by("space 0"), loss_by("classes")), "whole / whole"),
]


@cache
def plan(case: Case, degrees: tuple[int, int], picks: tuple[Picker, Picker], borders: str) -> Plan:
    """The plan of a case."""
    return twice_split_plan(case, degrees, picks, borders)


@pytest.mark.in_turns
@pytest.mark.parametrize(("case", "degrees", "picks", "borders"), CASES, ids=case_id)
def test_the_plan_equals_the_reference_run(
    case: Case, degrees: tuple[int, int], picks: tuple[Picker, Picker], borders: str
) -> None:
    made = plan(case, degrees, picks, borders)
    assert check(made) == ()
    assert agreement(lower(made)) == ()
    reports = on_ranks(made.world_size, split_runs.equal, made, 2)
    assert reports[0].passed, str(reports[0])
    assert {c.quantity for c in reports[0].comparisons} >= {"loss", "gradients", "parameters", "evaluation"}
    assert all(other == reports[0] for other in reports)


@pytest.mark.parametrize(
    ("case", "borders"),
    [(IMAGES, (TILES, "cut 2 / whole", "whole / cut 3")), (WORDS, ("cut 1 / whole", "whole / cut 1", "cut 1 / cut 2"))],
    ids=case_id,
)
@pytest.mark.parametrize("seed", range(2))
def test_plans_cut_at_random_along_both_axes_equal_the_reference_run(
    case: Case, borders: tuple[str, ...], seed: int
) -> None:
    made = random_twice(case, (2, 2), seed, borders)
    report = on_ranks(made.world_size, split_runs.equal, made, 2)[0]
    assert report.passed, str(report)


def test_a_checkpoint_of_two_axes_goes_on_along_one(tmp_path: Path) -> None:
    made = plan(WORDS, (2, 2), (SEQUENCE, columns_and_rows), "cut 1 / whole")
    held = parameter_states(made)
    assert any(isinstance(state.value, Both) and state.gradient != state.value for state in held.values())
    other = split_plan(WORDS, 4, columns_and_rows)
    for before, after in on_ranks(4, split_runs.resumed, made, other, str(tmp_path)):
        assert after == pytest.approx(before, rel=1e-9)


def test_the_dry_run_of_a_rank_agrees_with_its_program_and_its_peers() -> None:
    made = plan(*CASES[0])
    found = dry_run(made, 3)
    assert found.inside and {len(one.ranks) for one in found.inside} == {2, 4}
    assert found.differences == () and found.disagreements == ()


def test_a_plan_of_two_axes_survives_its_file() -> None:
    made = plan(*CASES[0])
    assert Plan.from_json(made.to_json()) == made
    assert made.layouts[0].axes == (("tensor", 2), ("tensor", 2))


def test_tiles_are_a_quarter_and_exchange_rows_along_both_axes() -> None:
    made = plan(*CASES[0])
    local = local_graph(made.graph, made.layouts[0])
    targets = {op.target for kind in local.classes for op in kind.ops if "exchange" in op.target}
    assert targets == {"placer.exchange.exchange.outer2", "placer.exchange.exchange.inner2"}
    whole = sum(op.forward_flops.per_row for kind in made.graph.classes for op in kind.ops if op.kind == "convolution")
    tiled = sum(op.forward_flops.per_row for kind in local.classes for op in kind.ops if op.kind == "convolution")
    assert (
        whole / 4 <= tiled <= whole / 2
    )  # the rows of neighbours are read, not computed; uneven tiles differ by a row


def test_one_dim_along_both_axes_is_refused_by_name() -> None:
    made = plan(*CASES[0])
    splits = tuple(
        split and replace(split, choices=tuple(name.replace("space 1", "space 0") for name in split.choices))
        for split in made.layouts[0].splits
    )
    layout = replace(made.layouts[0], splits=splits)
    with pytest.raises(UsageError, match="'space 0' along one axis and 'space 0' along the other"):
        local_graph(made.graph, layout)
