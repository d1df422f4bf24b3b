"""Plans whose replicas are several devices, each op cut by its rule, equal eager torch on one device."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import split_runs
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of, run_case
from examples.parity.named_splits import Picker, split_plan
from placer.cli import main
from placer.costs.precision import Numerics
from placer.costs.step_estimate import costs_of
from placer.errors import ExecutionError, UsageError
from placer.graph import BlockClass
from placer.legality import check
from placer.plans.plan import Plan, Split
from placer.program.agreement import agreement
from placer.program.buckets import part_buckets
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.runtime.executor.code_text import rank_code
from placer.search.problem import Pins
from placer.spmd.device_graph import local_graph
from pool import on_ranks
from split_pickers import (
    case_id,
    columns_and_rows,
    convolutions,
    exchanged_gpt2,
    experts_of_all_rows,
    experts_sent_to,
    megatron_gpt2,
    megatron_llama,
    norms_in_turns,
    nothing,
    rows_and_columns,
    rows_of_the_sequence,
    windows,
)
from split_plans import random_plan, searched_plans

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = Case(model="examples.parity.models:dropping_words", shapes=parity_models.TEXT)
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES)
SHIFTED = Case(model="execute_models:shifted", shapes=parity_models.IMAGES)
GPT2 = Case(model="examples.models:tiny_gpt2")
LLAMA = Case(model="examples.models:tiny_llama")
# The product of experts knows no float64.
MIXTRAL = Case(model="examples.models:tiny_mixtral", precision="float32")
RESNET = Case(model="examples.models:tiny_resnet")
PAIRS = (("x", (8, 16, 4)), ("y", (8, 16, 4)))
BATCH_NORMED = Case(model="execute_models:batch_normed_thrice", shapes=PAIRS, microbatches=(8,))
INSTANCE_NORMED = Case(model="execute_models:instance_normed_thrice", shapes=PAIRS, microbatches=(8,))

SEQUENCE = rows_of_the_sequence(nothing)
HEIGHT = convolutions("space 0")
ALONE = [
    (WORDS, columns_and_rows, 2, "whole"),
    (WORDS, columns_and_rows, 3, "whole"),
    (WORDS, rows_and_columns, 2, "whole"),
    (WORDS, SEQUENCE, 2, "cut 1"),
    (WORDS, SEQUENCE, 4, "cut 1"),
    (DROPPING, SEQUENCE, 2, "cut 1"),
    (IMAGES, HEIGHT, 2, "cut 2"),
    (IMAGES, convolutions("space 1"), 3, "cut 3"),
    (IMAGES, convolutions("out"), 2, "whole"),
    (IMAGES, convolutions("in"), 2, "whole"),
    (RESNET, HEIGHT, 2, "cut 2"),
    (GPT2, rows_of_the_sequence(megatron_gpt2), 2, "cut 1"),
    (GPT2, exchanged_gpt2, 2, "whole"),
    (GPT2, megatron_gpt2, 4, "whole"),
    (LLAMA, megatron_llama, 2, "whole"),
    (LLAMA, megatron_llama, 2, "cut 1"),
    (MIXTRAL, experts_of_all_rows, 4, "whole"),
    (MIXTRAL, experts_sent_to, 2, "whole"),
    (BATCH_NORMED, norms_in_turns, 2, "whole"),
    (INSTANCE_NORMED, norms_in_turns, 2, "whole"),
    (replace(BATCH_NORMED, recompute=True), norms_in_turns, 2, "whole"),
]
PRODUCTS = [
    (replace(WORDS, positions=2), columns_and_rows, 2, "whole"),
    (replace(WORDS, positions=2, schedule="zero-bubble", recompute=True), SEQUENCE, 2, "cut 1"),
    (replace(WORDS, positions=2, schedule="interleaved", turns=2, microbatches=(4, 4)), SEQUENCE, 2, "cut 1"),
    (replace(WORDS, replicas=2, shares=(3, 1), microbatches=(4, 4)), columns_and_rows, 2, "whole"),
    (replace(WORDS, replicas=2, sharding="parameters"), columns_and_rows, 2, "whole"),
    (replace(WORDS, replicas=2, sharding="gradients"), SEQUENCE, 2, "cut 1"),
    (replace(DROPPING, positions=2, recompute=True), SEQUENCE, 2, "whole"),
    (replace(IMAGES, positions=2, recompute=True), HEIGHT, 2, "cut 2"),
    (replace(IMAGES, replicas=2), HEIGHT, 2, "cut 2"),
    (replace(LLAMA, positions=2), megatron_llama, 2, "cut 1"),
    (replace(LLAMA, replicas=2), megatron_llama, 2, "cut 1"),
    (replace(MIXTRAL, replicas=2), experts_sent_to, 2, "whole"),
]


@cache
def plan(case: Case, pick: Picker, degree: int, borders: str) -> Plan:
    """The plan of a case."""
    return split_plan(case, degree, pick, borders)


@pytest.mark.parametrize(("case", "pick", "degree", "borders"), [*ALONE, *PRODUCTS], ids=case_id)
def test_the_plan_equals_the_reference_run(case: Case, pick: Picker, degree: int, borders: str) -> None:
    made = plan(case, pick, degree, borders)
    reports = on_ranks(made.world_size, split_runs.equal, made)
    assert reports[0].passed, str(reports[0])
    assert {c.quantity for c in reports[0].comparisons} >= {"loss", "gradients", "parameters", "evaluation"}
    assert all(other == reports[0] for other in reports)


def test_a_norm_that_is_cut_another_way_each_time_equals_the_reference_run_compiled() -> None:
    report = on_ranks(2, run_case, plan(BATCH_NORMED, norms_in_turns, 2, "whole"), 2, "aot_eager")[0]
    assert report.passed, str(report)


def test_as_many_exchanges_of_experts_are_priced_as_are_made() -> None:
    made = plan(MIXTRAL, experts_sent_to, 2, "whole")
    local = local_graph(made.graph, made.layouts[0])
    ops = [op for block in local.blocks for op in local.classes[block.kind].ops if op.kind == "communication"]
    priced = len(made.microbatches) * sum(op.target.split(".")[1:3].count("all_to_all") for op in ops)
    assert on_ranks(2, split_runs.exchanges_of_a_step, made) == [priced] * 2


@pytest.mark.parametrize(
    ("case", "degree"),
    [(IMAGES, 2), (replace(IMAGES, precision="bfloat16-autocast"), 2), (SHIFTED, 2), (SHIFTED, 3)],
    ids=str,
)
def test_the_rows_that_windows_get_of_others_are_those_that_are_priced(case: Case, degree: int) -> None:
    """Of each exchange forward and back those of the rank that gets most, where a window reaches or shifts."""
    made = plan(case, windows, degree, "cut 2")
    local, priced = local_graph(made.graph, made.layouts[0]), list[float]()
    numerics = Numerics.of(local, made.settings, "cpu")
    for kind in (local.classes[block.kind] for block in local.blocks):
        for op, own in zip(kind.ops, numerics.ops(kind), strict=True):
            both = (op.written_bytes, op.backward_written_bytes) if "exchange" in op.target else ()
            priced += [own.written * one.at(rows) for rows in made.microbatches for one in both]
    got = [max(each) for each in zip(*on_ranks(degree, split_runs.rows_from_others, made), strict=True)]
    assert got
    assert sorted(got) == sorted(size for size in priced if size)


CUT_AT_RANDOM = [WORDS, DROPPING, IMAGES, replace(WORDS, positions=2), BATCH_NORMED]


@pytest.mark.parametrize("case", CUT_AT_RANDOM, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_plans_whose_every_op_is_cut_at_random_equal_the_reference_run(case: Case, seed: int) -> None:
    made = random_plan(case, 2, seed)
    report = on_ranks(made.world_size, split_runs.equal, made, 2)[0]
    assert report.passed, str(report)


@pytest.mark.parametrize(
    ("case", "pins"), [(WORDS, Pins(tensor=2)), (IMAGES, Pins(height=2)), (GPT2, Pins(tensor=2))], ids=str
)
def test_the_layouts_that_a_search_finds_equal_the_reference_run(case: Case, pins: Pins) -> None:
    made = searched_plans(case, 2, pins)
    assert made
    for one in made:
        report = on_ranks(2, split_runs.equal, one)[0]
        assert report.passed, str(report)


def two_layouts(borders: str) -> Plan:
    """Two stages, each with a layout of its own; only the second's borders are as given."""
    case = replace(WORDS, positions=2)
    first, second = plan(case, columns_and_rows, 2, "whole"), plan(case, SEQUENCE, 2, borders)
    stages = (first.stages[0], replace(first.stages[1], layout=1))
    return replace(first, layouts=(*first.layouts, *second.layouts), stages=stages)


@pytest.mark.parametrize("borders", ["whole", "cut 1"])
def test_stages_with_different_layouts_equal_the_reference_run(borders: str) -> None:
    made = two_layouts(borders)
    assert check(made) == ()
    report = on_ranks(4, split_runs.equal, made)[0]
    assert report.passed, str(report)


def test_stages_on_the_same_devices_that_disagree_about_a_value_between_them_are_refused() -> None:
    case = replace(WORDS, schedule="interleaved", turns=2, microbatches=(4, 4))
    first, second = plan(case, columns_and_rows, 2, "whole"), plan(case, SEQUENCE, 2, "cut 1")
    stages = (first.stages[0], replace(first.stages[1], layout=1))
    found = check(replace(first, layouts=(*first.layouts, *second.layouts), stages=stages))
    assert any("share their devices, and their layouts disagree about b" in one.message for one in found)


def test_models_that_do_not_cast_are_held_to_1e_9() -> None:
    made = plan(WORDS, columns_and_rows, 2, "whole")
    assert on_ranks(2, split_runs.equal, made, 1)[0].tolerance == 1e-9


WORDS_ARGS = (WORDS, columns_and_rows, 2, "whole")
SEQUENCE_ARGS = (WORDS, SEQUENCE, 2, "cut 1")


@pytest.mark.parametrize(
    ("bug", "args"),
    [
        (split_runs.without_sums_backward, WORDS_ARGS),
        (split_runs.with_pieces_exchanged, SEQUENCE_ARGS),
        (split_runs.without_neighbours_gradients, (IMAGES, HEIGHT, 2, "cut 2")),
        (split_runs.without_sum_of_parts, SEQUENCE_ARGS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bug_in_an_adjoint_is_caught(bug: object, args: tuple[Case, Picker, int, str]) -> None:
    assert callable(bug)
    report = on_ranks(2, bug, plan(*args))[0]
    assert "gradients" in {c.quantity for c in report.comparisons if c.relative > report.tolerance}
    assert "loss" not in {c.quantity for c in report.comparisons if c.relative > report.tolerance}


def test_each_rank_holds_its_piece_under_the_models_own_name() -> None:
    first, second = on_ranks(2, split_runs.held, plan(*WORDS_ARGS))
    assert first == second
    width, wide = parity_models.WIDTH, 2 * parity_models.WIDTH
    assert first["layers.0.wide.weight"] == (wide // 2, width)
    assert first["layers.0.wide.bias"] == (wide // 2,)
    assert first["layers.0.back.weight"] == (width, wide // 2)
    assert first["layers.0.back.bias"] == first["layers.0.norm.weight"] == (width,)


def test_a_loaded_state_gives_the_same_loss() -> None:
    for before, after in on_ranks(2, split_runs.trained_and_loaded, plan(*WORDS_ARGS)):
        assert before == pytest.approx(after, rel=1e-12)


@pytest.mark.parametrize(
    "other",
    [SEQUENCE_ARGS, (replace(WORDS, positions=2), None, 1, "whole"), (replace(WORDS, replicas=2), None, 1, "whole")],
    ids=["another split", "pipeline", "data parallel"],
)
def test_a_checkpoint_goes_on_under_another_layout(other: tuple[Case, Picker | None, int, str], tmp_path: Path) -> None:
    case, pick, degree, borders = other
    second = plan_of(case) if pick is None else plan(case, pick, degree, borders)
    for before, after in on_ranks(2, split_runs.resumed, plan(*WORDS_ARGS), second, str(tmp_path)):
        assert after == pytest.approx(before, rel=1e-9)


def test_the_code_of_a_rank_shows_local_ops_and_collectives() -> None:
    first, second = on_ranks(2, split_runs.code_of, plan(*WORDS_ARGS), 0)
    assert "vocabulary(torch.ops.aten.embedding.default" in first
    assert "start = 0, end = 12, of = 24" in first
    assert "start = 12, end = 24, of = 24" in second
    assert "all_reduce" in first


def test_what_a_rank_runs_can_be_read_without_weights_and_without_ranks() -> None:
    code = rank_code(plan(GPT2, megatron_gpt2, 2, "whole"), 1)
    assert "vocabulary(aten.embedding.default" in code and "start = 48, end = 96, of = 96" in code
    assert "aten.split.Tensor(" in code and "gradient = Way('all_reduce'))" in code
    assert "# transformer.h.1: as transformer.h.0" in code
    with pytest.raises(UsageError, match="ranks 0 to 1, not 2"):
        rank_code(plan(GPT2, megatron_gpt2, 2, "whole"), 2)


def test_the_command_line_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(*WORDS_ARGS).save(tmp_path / "plan.json")
    arguments = ["explain", str(tmp_path / "plan.json"), "--program", "--rank", "1", "--code"]
    monkeypatch.setattr(sys, "argv", ["placer", *arguments])
    with contextlib.suppress(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert "all_reduce(" in shown and "# layers.1: as layers.0" in shown


@pytest.mark.parametrize("args", [WORDS_ARGS, PRODUCTS[0], PRODUCTS[1], PRODUCTS[4]], ids=case_id)
def test_programs_agree_and_the_plan_is_legal(args: tuple[Case, Picker, int, str]) -> None:
    made = plan(*args)
    programs = lower(made)
    assert [program.rank for program in programs] == list(range(made.world_size))
    assert agreement(programs) == ()
    assert check(made) == ()


def test_parts_of_gradients_are_summed_over_the_devices_of_each_replica() -> None:
    made = plan(replace(WORDS, replicas=2, sharding="gradients"), SEQUENCE, 2, "cut 1")
    parts = [
        {entry.ranks for entry in program.instructions if isinstance(entry, Collective) and entry.purpose == "parts"}
        for program in lower(made)
    ]
    assert parts == [{(0, 1)}, {(0, 1)}, {(2, 3)}, {(2, 3)}]


@pytest.mark.parametrize("args", [PRODUCTS[0], PRODUCTS[1], PRODUCTS[3], PRODUCTS[4], PRODUCTS[5]], ids=case_id)
def test_ranks_do_between_replicas_and_stages_what_their_programs_say(args: tuple[Case, Picker, int, str]) -> None:
    made = plan(*args)
    made = replace(made, settings=replace(made.settings, precision="float32"))
    for count, differences in on_ranks(made.world_size, split_runs.differences, made):
        assert count and not differences, differences


def with_choice(made: Plan, op: str, choice: str) -> Plan:
    """The plan with another choice for the ops of a name."""
    layout = made.layouts[0]
    splits = tuple(
        split and replace(split, choices=tuple(choice if name == op else old for name, old in _named(kind, split)))
        for kind, split in zip(made.graph.classes, layout.splits, strict=True)
    )
    return replace(made, layouts=(replace(layout, splits=splits),))


def _named(kind: BlockClass, split: Split) -> list[tuple[str, str]]:
    return [(op.name, choice) for op, choice in zip(kind.ops, split.choices, strict=True)]


def test_what_cannot_be_cut_is_refused_by_name_before_training() -> None:
    made = with_choice(plan(*WORDS_ARGS), "linear_2", "lead 0")
    with pytest.raises(ExecutionError, match=r"op linear_2 .*per row of the batch.*plan again with another split"):
        on_ranks(2, split_runs.held, made)


def test_devices_of_a_replica_sum_shards_where_replicas_shard_their_state() -> None:
    """Of gradients that each device has a part of; two replicas of two devices that share each row's tokens."""
    made = plan_of(replace(GPT2, axis="sequence", degree=2, replicas=2, sharding="parameters"))
    costs, stage = costs_of(made).of_stage(made, made.stages[0]), made.stages[0]
    summed = costs.ranges.of(stage.first, stage.last).counts.summed * costs.numerics.weight_bytes
    held = sum(bucket.bytes for _, bucket in part_buckets(made, 0))
    assert held == pytest.approx(summed / 2, rel=0.01) and held > 0
    found = costs.after_backward.summed(stage.first, stage.last, device=0, parts=2)
    assert found == pytest.approx(costs.network.collective("all_reduce", (0, 1), held), rel=0.01)
