"""Products of experts: every split by execution, and rows in an order of each rank's own."""

from __future__ import annotations

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - registers the grouped product
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.rules.layouts import LocalOp
from placer.rules.splits import localise, own_choices, split_choices
from placer.runtime.local_ops import run_local
from split_ranks import Case, ThreadAxis, check, checked, thread_axes, together

GROUPED = torch.ops.transformers.grouped_mm_fallback.default


def offsets(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, dtype=torch.int32).cumsum(0).to(torch.int32)


def product(counts: list[int], k: int, n: int) -> Case:
    x = torch.randn(sum(counts), k, dtype=torch.float64, requires_grad=True)
    w = torch.randn(len(counts), k, n, dtype=torch.float64, requires_grad=True)
    return Case(function=GROUPED, args=(x, w, offsets(counts)))


COUNTS = st.lists(st.integers(0, 3), min_size=4, max_size=8).filter(lambda counts: sum(counts) > 1)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(counts=COUNTS, sizes=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([2, 4, 6])), degree=st.integers(2, 4))
def test_grouped_products_are_cut_on_columns_rows_of_weights_and_experts(
    counts: list[int], sizes: tuple[int, int], degree: int
) -> None:
    found = checked(product(counts, *sizes), degree)
    assert "experts" in found


def test_every_dim_of_a_grouped_product_but_its_rows_may_be_cut() -> None:
    names = {choice.name for choice in split_choices(product([2, 3, 1, 2], 4, 6).call, 2)}
    assert names == {"whole", "deferred", "n", "k", "experts"}


@pytest.mark.parametrize("name", ["own rows", "own rows, experts apart"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data(), degree=st.sampled_from([2, 4]))
def test_rows_in_own_order_are_multiplied_here_or_at_the_ranks_of_their_experts(
    name: str, data: st.DataObject, degree: int
) -> None:
    torch.manual_seed(0)
    counts = [data.draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)) for _ in range(degree)]
    each = 4
    counts = [[*one[:-1], max(0, each)] for one in counts]
    longest = max(map(sum, counts))
    counts = [[*one[:-1], one[-1] + longest - sum(one)] for one in counts]
    k, n = 3, 2
    w = torch.randn(8, k, n, dtype=torch.float64)
    rows = [torch.randn(sum(one), k, dtype=torch.float64) for one in counts]
    gradients = [torch.randn(sum(one), n, dtype=torch.float64) for one in counts]
    total = [sum(column) for column in zip(*counts, strict=True)]
    call = Case(function=GROUPED, args=(torch.cat(rows), w, offsets(total))).call
    choice = next(one for one in own_choices(call) if one.name == name)
    whole_w = w.clone().requires_grad_()
    whole_x = [one.clone().requires_grad_() for one in rows]
    wanted = [GROUPED(x, whole_w, offsets(one)) for x, one in zip(whole_x, counts, strict=True)]
    torch.autograd.backward(wanted, gradients)
    apart = "apart" in name
    pieces = [one.clone().requires_grad_() for one in (w.chunk(degree) if apart else [w] * degree)]
    mine = [one.clone().requires_grad_() for one in rows]
    axes = thread_axes(degree)
    made: list[torch.Tensor] = [torch.empty(0)] * degree

    def rank(number: int) -> None:
        local = localise(call, choice, degree, number)
        assert isinstance(local, LocalOp) == apart
        axis: ThreadAxis = axes[number]
        out = run_local(local, GROUPED, (mine[number], pieces[number], offsets(counts[number])), {}, axis)
        torch.autograd.backward([out], [gradients[number]])
        made[number] = out

    together(rank, degree, threads=True)
    for one, other in zip(made, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    for one, other in zip(mine, whole_x, strict=True):
        assert one.grad is not None and other.grad is not None and torch.allclose(one.grad, other.grad, atol=1e-12)
    grads = [one.grad for one in pieces if one.grad is not None]
    whole_grad = torch.cat(grads) if apart else torch.stack(grads).sum(0)
    assert whole_w.grad is not None and torch.allclose(whole_grad, whole_w.grad, atol=1e-12)


def test_counts_per_expert_of_pieces_add_up() -> None:
    ids = torch.randint(0, 4, (24,)).double()
    case = Case(function=torch.ops.aten.histc.default, args=(ids, 4, 0, 3))
    choice = next(one for one in split_choices(case.call, 3) if one.name == "dim 0")
    check(case, choice, 3)
