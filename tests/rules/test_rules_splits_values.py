"""Layouts, windows, and how a person adds a split rule; a wrong rule does not pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import UsageError
from placer.rules import Argument, Call, Value
from placer.rules.layouts import (
    PARTIAL,
    SAME,
    SHARED,
    SUMMED,
    WHOLE,
    Choice,
    Cut,
    Halo,
    Inner,
    LocalOp,
    conversion,
    cut,
    inner_bytes,
    piece,
    wanted,
)
from placer.rules.splits import (
    SplitRule,
    divided,
    in_parts,
    legal,
    localise,
    named,
    register_split,
    split_choices,
    unregister_split,
)
from split_ranks import Case, WrongSplitError, check, checked


@contextmanager
def registered(target: str, rule: SplitRule) -> Iterator[None]:
    register_split(target, rule)
    try:
        yield
    finally:
        unregister_split(target)


aten = torch.ops.aten


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def names(target: str, *arguments: Argument, outputs: tuple[Value, ...], degree: int | None = None) -> list[str]:
    call = Call(target=target, arguments=arguments, outputs=outputs)
    return [choice.name for choice in split_choices(call, degree)]


def scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sums of what came before in the sequence, through a matrix."""
    return x.cumsum(1) @ w


@given(size=st.integers(0, 50), degree=st.integers(1, 8))
def test_pieces_follow_each_other_and_differ_by_at_most_one(size: int, degree: int) -> None:
    bounds = [piece(size, degree, rank) for rank in range(degree)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    lengths = [end - start for start, end in bounds]
    assert max(lengths) - min(lengths) <= 1 and lengths[-1] == max(lengths)


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3)),
    size=st.integers(1, 20),
    data=st.data(),
)
def test_a_window_wants_the_rows_that_each_row_of_its_result_reads(
    sizes: tuple[int, int, int, int], size: int, data: st.DataObject
) -> None:
    halo = Halo(0, *sizes)
    start = data.draw(st.integers(0, 20))
    end = data.draw(st.integers(start + 1, 21))
    read = {i * halo.stride - halo.padding + halo.dilation * k for i in range(start, end) for k in range(halo.kernel)}
    rows = wanted(halo, size, start, end)
    inside = [row for row in read if 0 <= row < size]
    assert all(rows.start <= row < rows.end for row in inside)
    assert rows.before + rows.end - rows.start + rows.behind == max(read) + 1 - min(read)
    if inside:
        assert rows.before == max(0, -min(read)) and rows.behind == max(0, max(read) + 1 - size)


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3)),
    size=st.integers(1, 20),
    data=st.data(),
)
def test_a_transposed_window_wants_the_rows_that_write_its_piece(
    sizes: tuple[int, int, int, int], size: int, data: st.DataObject
) -> None:
    halo = Halo(0, *sizes, transposed=True)
    start = data.draw(st.integers(0, 20))
    end = data.draw(st.integers(start + 1, 21))
    writing = [
        row
        for row in range(size)
        if any(start <= row * halo.stride - halo.padding + halo.dilation * k < end for k in range(halo.kernel))
    ]
    rows = wanted(halo, size, start, end)
    assert all(rows.start <= row < rows.end for row in writing)
    assert (rows.before, rows.behind) == (0, 0)
    if halo.dilation == 1 and halo.kernel >= halo.stride and writing:
        assert (rows.start, rows.end) == (writing[0], writing[-1] + 1)


def test_what_moves_between_layouts() -> None:
    assert conversion(Cut(0), WHOLE) == "all_gather"
    assert conversion(Cut(0), Cut(1)) == "all_to_all"
    assert conversion(PARTIAL, WHOLE) == "all_reduce"
    assert conversion(PARTIAL, Cut(1)) == "reduce_scatter"
    assert {conversion(WHOLE, Cut(0)), conversion(WHOLE, PARTIAL), conversion(Cut(2), PARTIAL)} == {""}
    assert conversion(Cut(0), Cut(0, own=True)) == "none" == conversion(Cut(0, own=True), WHOLE)


def test_an_op_without_a_rule_is_done_whole_and_a_foreign_linear_is_not_torchs() -> None:
    x = Value((4, 4), 8, True)
    assert names("mylib::linear", x, x, outputs=(x,)) == ["whole"]
    assert names("aten::linear", x, x, outputs=(x,)) == ["whole", "deferred", "lead 0", "n", "k"]


def test_whole_has_whole_gradients_and_a_bias_counts_once_where_a_product_is_cut_on_k() -> None:
    x, w, bias, out = Value((4, 6)), Value((8, 6)), Value((8,)), Value((4, 8))
    whole, _, rows, n, k = split_choices(Call(target="aten::linear", arguments=(x, w, bias), outputs=(out,)))
    assert whole.inputs == (SAME, SAME, SAME) and whole.outputs == (SAME,)
    assert rows.inputs == (cut(0), SHARED, SHARED) and rows.outputs == (cut(0),)
    assert n.inputs == (SHARED, cut(0), cut(0)) and n.outputs == (cut(1),)
    assert k.inputs == (cut(1), cut(1), SUMMED) and k.outputs == (SUMMED,)


def test_a_cut_survives_a_view_where_its_dim_is_outermost_and_the_degree_divides_it() -> None:
    hidden, heads = Value((2, 3, 32)), Value((2, 3, 4, 8))
    assert "dim 2" in names("aten::view", hidden, (2, 3, 4, 8), outputs=(heads,), degree=4)
    assert "dim 2" not in names("aten::view", hidden, (2, 3, 4, 8), outputs=(heads,), degree=8)
    assert "dim 3" not in names("aten::view", heads, (2, 3, 32), outputs=(hidden,), degree=4)


def test_grouped_heads_are_cut_as_far_as_key_value_heads_go_and_beyond_with_whole_keys() -> None:
    q, k = Value((2, 8, 6, 4)), Value((2, 2, 6, 4))
    arguments: tuple[Argument, ...] = (q, k, k)
    two, four = (
        names("aten::scaled_dot_product_attention", *arguments, outputs=(q,), degree=degree) for degree in (2, 4)
    )
    assert "heads" in two and "heads" not in four and "heads, keys whole" in four


def test_a_rank_is_told_its_own_sizes_groups_and_part_of_the_vocabulary() -> None:
    x, heads = Value((4, 3, 32)), Value((4, 3, 4, 8))
    view = Call(target="aten::view", arguments=(x, (4, 3, -1, 8)), outputs=(heads,))
    local = localise(view, next(one for one in split_choices(view) if one.name == "dim 2"), 2, 1)
    assert isinstance(local, Call) and local.arguments == (Value((4, 3, 16)), (4, 3, 2, 8))
    table, ids = Value((10, 4)), Value((3,))
    lookup = Call(target="aten::embedding", arguments=(table, ids), outputs=(Value((3, 4)),))
    part = localise(lookup, next(one for one in split_choices(lookup) if one.name == "vocabulary"), 2, 1)
    assert isinstance(part, LocalOp) and (part.number("start"), part.number("end")) == (5, 10)
    with pytest.raises(UsageError, match="cannot be cut as 'dim 2' 3 times"):
        localise(view, next(one for one in split_choices(view) if one.name == "dim 2"), 3, 0)


def test_cross_entropy_on_classes_moves_three_numbers_per_position() -> None:
    scores, target = Value((6, 10), 4, True), Value((6,), 8)
    call = Call(target="aten::cross_entropy_loss", arguments=(scores, target), outputs=(Value((), 4, True),))
    choice = next(one for one in split_choices(call) if one.name == "classes")
    pieces = (Value((6, 5), 4), target)
    assert sum(inner_bytes(one, pieces) for one in choice.inner) == 3 * 6 * 4


def test_a_person_names_the_dims_of_an_op_and_it_is_cut() -> None:
    rule = named("b s! h, h n -> b s! n")
    case = Case(function=scan, args=(floats(4, 3, 6), floats(6, 8)), target="mylib::scan")
    with registered("mylib::scan", rule):
        assert checked(case, 2) == ["whole", "deferred", "b", "n", "h"]
        with pytest.raises(UsageError, match="already has a split rule"):
            register_split("mylib::scan", rule)
    assert len(split_choices(case.call)) == 1


def test_letters_may_be_restricted_added_operands_count_once_and_windows_slide() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return x @ w + bias

    case = Case(function=layer, args=(floats(2, 4, 6), floats(6, 8), floats(8)), target="mylib::layer")
    with registered("mylib::layer", named("... k, k n, +n -> ... n", split="k n")):
        assert checked(case, 2) == ["whole", "deferred", "n", "k"]

    def pairs(x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:] * x[:, :-1]

    window = named("b s -> b s", windows={"s": lambda call: Halo(1, kernel=2)})
    with registered("mylib::pairs", window):
        assert checked(Case(function=pairs, args=(floats(4, 9),), target="mylib::pairs"), 3) == [
            "whole",
            "deferred",
            "b",
            "s",
        ]


@pytest.mark.parametrize("text", ["b s h, h n", "b, n -> n"])
def test_dims_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(UsageError), registered("mylib::scan", named(text)):
        split_choices(Case(function=scan, args=(floats(4, 3, 6), floats(6, 8)), target="mylib::scan").call)


WRONG: dict[str, SplitRule] = {
    "the scanned dim is cut": named("b s h, h n -> b s n", split="s"),
    "a summed dim gives whole results": lambda call: (Choice(name="h", inputs=(cut(2), cut(0)), outputs=(SAME,)),),
    "a shared weight's gradient is taken for whole": lambda call: (
        Choice(name="b", inputs=(cut(0), SAME), outputs=(cut(0),)),
    ),
    "a dim of the weight is cut for another of the result": lambda call: (
        Choice(name="n", inputs=(cut(0), cut(1)), outputs=(cut(2),)),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_caught(name: str) -> None:
    case = Case(function=scan, args=(floats(4, 4, 4), floats(4, 4)), target="mylib::scan")
    with registered("mylib::scan", WRONG[name]):
        wrong = split_choices(case.call)[2:]
        assert len(wrong) == 1
        with pytest.raises((WrongSplitError, RuntimeError)):
            check(case, wrong[0], 2)


def test_a_halo_one_row_short_is_caught() -> None:
    case = Case(function=aten.conv1d.default, args=(floats(2, 2, 12), floats(2, 2, 3), None, [1], [1]))
    choice = next(one for one in split_choices(case.call) if one.name == "space 0")
    check(case, choice, 3)
    short = replace(choice, halo=(Halo(2, 2, 1, 1, 1), None))
    with pytest.raises(WrongSplitError):
        check(case, short, 3)


def test_uneven_pieces_are_allowed_where_all_cut_sizes_are_one_size() -> None:
    x, w = Value((5, 6)), Value((8, 6))
    call = Call(target="aten::linear", arguments=(x, w), outputs=(Value((5, 8)),))
    rows = next(one for one in split_choices(call) if one.name == "lead 0")
    assert legal(rows, call, 2) and not legal(rows, call, 6)
    flat = Call(target="aten::view", arguments=(Value((5, 6)), (30,)), outputs=(Value((30,)),))
    assert "dim 0" not in [one.name for one in split_choices(flat, 2)]


DIVIDED: dict[str, Case] = {
    "split": Case(function=aten.split.Tensor, args=(floats(2, 12), 4, 1)),
    "split_with_sizes": Case(function=aten.split_with_sizes.default, args=(floats(2, 12), [6, 6], -1)),
    "chunk": Case(function=aten.chunk.default, args=(floats(2, 12), 3, 1)),
    "view": Case(function=aten.view.default, args=(floats(2, 24), [2, 3, -1, 2])),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_each_part_of_a_dim_that_is_divided_may_be_cut(name: str) -> None:
    call = DIVIDED[name].call
    (choice,) = divided(call)
    assert isinstance(choice.inputs[0].value, Cut) and choice.inputs[0].value.parts == len(call.outputs) + 2 * (
        name == "view"
    )
    assert legal(choice, call, 2)
    check(DIVIDED[name], choice, 2)


IN_PARTS: dict[str, Case] = {
    "linear": Case(function=aten.linear.default, args=(floats(12, 12), floats(12, 12), floats(12))),
    "addmm": Case(function=aten.addmm.default, args=(floats(12), floats(12, 12), floats(12, 12))),
    "gelu": Case(function=aten.gelu.default, args=(floats(12, 12),)),
    "mul": Case(function=aten.mul.Tensor, args=(floats(12, 12), floats(12))),
    "transpose": Case(function=aten.transpose.int, args=(floats(12, 12), 0, 1)),
    "view": Case(function=aten.view.default, args=(floats(12, 2, 12), [12, 24])),
    "softmax": Case(function=aten.softmax.int, args=(floats(12, 12), 1)),
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_dim_whose_indices_are_treated_alike_may_be_cut_in_parts(name: str) -> None:
    case = IN_PARTS[name]
    made = [in_parts(case.call, choice, 3) for choice in split_choices(case.call, 2)]
    cuts = [choice for choice in made if choice is not None]
    assert cuts
    for choice in cuts:
        for degree in (2, 4):
            check(case, choice, degree)


def test_offsets_and_windows_are_not_cut_in_parts() -> None:
    lookup = Case(function=aten.embedding.default, args=(floats(12, 4), torch.arange(6)))
    window = Case(function=aten.conv1d.default, args=(floats(2, 4, 12), floats(4, 4, 3)))
    for case, name in ((lookup, "vocabulary"), (window, "space 0")):
        choice = next(one for one in split_choices(case.call) if one.name == name)
        assert in_parts(case.call, choice, 3) is None


def test_inner_collectives_are_sized_by_the_ranks_pieces() -> None:
    sent = Inner(collective="all_to_all", backward=False, sizes=((0, 0), (1, 2)))
    assert inner_bytes(sent, (Value((12, 4), 2), Value((2, 4, 6), 2))) == 12 * 6 * 2
