"""Products of experts: every split by execution, and rows in an order of each rank's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - registers the grouped product
from hypothesis import given, settings
from hypothesis import strategies as st

from local_runs import run_local
from placer.rules.layouts import Cut
from placer.rules.splits import localise, own_choices, split_choices
from split_ranks import Case, check, checked, thread_axes, together

GROUPED = torch.ops.transformers.grouped_mm_fallback.default


def offsets(counts: list[int]) -> torch.Tensor:
    return torch.tensor(counts, dtype=torch.int32).cumsum(0).to(torch.int32)


def product(counts: list[int], k: int, n: int) -> Case:
    x = torch.randn(sum(counts), k, dtype=torch.float64, requires_grad=True)
    w = torch.randn(len(counts), k, n, dtype=torch.float64, requires_grad=True)
    return Case(function=GROUPED, args=(x, w, offsets(counts)))


COUNTS = st.lists(st.integers(0, 3), min_size=4, max_size=8).filter(lambda counts: sum(counts) > 1)


@settings(max_examples=15, derandomize=True)
@given(counts=COUNTS, sizes=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([2, 4, 6])), degree=st.integers(2, 4))
def test_grouped_products_are_cut_on_columns_rows_of_weights_and_experts(
    counts: list[int], sizes: tuple[int, int], degree: int
) -> None:
    found = checked(product(counts, *sizes), degree)
    assert "experts" in found


def test_every_dim_of_a_grouped_product_but_its_rows_may_be_cut() -> None:
    names = {choice.name for choice in split_choices(product([2, 3, 1, 2], 4, 6).call, 2)}
    assert names == {"whole", "deferred", "n", "k", "experts"}


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows of each rank sorted by expert, the experts' weights, and a gradient for each rank's result."""

    counts: list[list[int]]
    weight: torch.Tensor
    rows: list[torch.Tensor]
    gradients: list[torch.Tensor]

    @staticmethod
    def drawn(data: st.DataObject, degree: int, k: int = 3, n: int = 2) -> Routed:
        """As many rows on every rank, some experts without any."""
        counts = [data.draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)) for _ in range(degree)]
        longest = max(1, *map(sum, counts))
        counts = [[*one[:-1], one[-1] + longest - sum(one)] for one in counts]
        rows, gradients = ([torch.randn(longest, size, dtype=torch.float64) for _ in range(degree)] for size in (k, n))
        return Routed(counts, torch.randn(8, k, n, dtype=torch.float64), rows, gradients)

    @property
    def case(self) -> Case:
        """The product of all rows."""
        total = [sum(column) for column in zip(*self.counts, strict=True)]
        return Case(function=GROUPED, args=(torch.cat(self.rows), self.weight, offsets(total)))


@dataclass(frozen=True, slots=True)
class Products:
    """Results and gradients, by rank."""

    made: list[torch.Tensor]
    rows: list[torch.Tensor]
    weights: list[torch.Tensor]

    @property
    def gradients(self) -> list[torch.Tensor]:
        """Of the rows."""
        return [one.grad for one in self.rows if one.grad is not None]


def one_device(routed: Routed) -> Products:
    weight, rows = routed.weight.clone().requires_grad_(), [one.clone().requires_grad_() for one in routed.rows]
    made = [GROUPED(x, weight, offsets(one)) for x, one in zip(rows, routed.counts, strict=True)]
    torch.autograd.backward(made, routed.gradients)
    return Products(made, rows, [weight])


def ranks(routed: Routed, name: str, degree: int) -> Products:
    call = routed.case.call
    choice = next(one for one in own_choices(call) if one.name == name)
    cut_experts = isinstance(choice.inputs[1].value, Cut)
    parts = torch.chunk(routed.weight, degree) if cut_experts else [routed.weight] * degree
    weights, rows = ([one.clone().requires_grad_() for one in given] for given in (parts, routed.rows))
    made, axes = [torch.empty(0)] * degree, thread_axes(degree)

    def rank(number: int) -> None:
        local = localise(call, choice, degree, number)
        arguments = (rows[number], weights[number], offsets(routed.counts[number]))
        out = run_local(local, GROUPED, arguments, {}, axes[number])
        assert isinstance(out, torch.Tensor)
        torch.autograd.backward([out], [routed.gradients[number]])
        made[number] = out

    together(rank, degree, threads=True)
    return Products(made, rows, weights)


@pytest.mark.parametrize("name", ["own rows", "own rows, experts apart"])
@settings(max_examples=10, derandomize=True)
@given(data=st.data(), degree=st.sampled_from([2, 4]))
def test_rows_in_own_order_are_multiplied_here_or_at_the_ranks_of_their_experts(
    name: str, data: st.DataObject, degree: int
) -> None:
    torch.manual_seed(0)
    routed = Routed.drawn(data, degree)
    whole, found = one_device(routed), ranks(routed, name, degree)
    for one, other in zip((*found.made, *found.gradients), (*whole.made, *whole.gradients), strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    grads = [one.grad for one in found.weights if one.grad is not None]
    together_ = torch.cat(grads) if "apart" in name else torch.stack(grads).sum(0)
    assert whole.weights[0].grad is not None and torch.allclose(together_, whole.weights[0].grad, atol=1e-12)


def test_counts_per_expert_of_pieces_add_up() -> None:
    ids = torch.randint(0, 4, (24,)).double()
    case = Case(function=torch.ops.aten.histc.default, args=(ids, 4, 0, 3))
    choice = next(one for one in split_choices(case.call, 3) if one.name == "dim 0")
    check(case, choice, 3)
