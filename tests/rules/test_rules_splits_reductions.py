"""Splits of reductions, normalisations, gathers and losses by execution: pieces put together are the whole op."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from placer.rules.splits import split_choices
from split_cases import Builder, Sizes, case, floats, ids, pieces_agree, plain, positive
from split_ranks import Case

pytestmark = pytest.mark.in_turns

aten = torch.ops.aten


def reduction(function: Callable[..., object]) -> Builder:
    def build(s: Sizes) -> Case:
        return case(function, s.floats(3), s.pick([0], [1], [-1], [0, 2], [0, 1, 2]), s.flag())

    return build


def embedding(s: Sizes) -> Case:
    rows = s.size(4, 6, 8, 12)
    return case(aten.embedding.default, floats(rows, s.size()), ids(rows, *s.sizes(s.size(1, 2))), s.pick(-1, 0, 3))


def embedding_bag(s: Sizes) -> Case:
    mode, bags = s.pick(0, 1, 2), s.size(1, 3)
    weights = floats(2 * bags) if mode == 0 and s.pick(True, False) else None
    table, numbers, starts = floats(8, s.size()), ids(8, 2 * bags), torch.arange(0, 2 * bags, 2)
    return case(
        aten.embedding_bag.padding_idx, table, numbers, starts, False, mode, False, weights, False, s.pick(None, 3)
    )


def index(s: Sizes) -> Case:
    a, b, c = s.size(2, 4), s.size(3, 4), s.size(2, 4)
    (first, second), third = s.sizes(2), s.size(2, 4)
    ways: tuple[list[torch.Tensor | None], ...] = (
        [ids(a, first, second)],
        [None, ids(b, first, second)],
        [ids(a, first, 1), ids(b, third)],
        [ids(a, third), None, ids(c, third)],
    )
    return case(aten.index.Tensor, floats(a, b, c), ways[s.size(0, 1, 2, 3)])


def index_select(s: Sizes) -> Case:
    shape, dim = (4, 6, 8), s.dim(3)
    return case(aten.index_select.default, floats(*shape), dim, ids(shape[dim], s.size()))


def index_put(s: Sizes) -> Case:
    rows, n, adds = s.size(4, 8), s.size(2, 4), s.flag()
    where = ids(rows, n) if adds else torch.randperm(rows)[:n]
    hidden = s.size()
    return case(aten.index_put.default, floats(rows, hidden), [where], floats(n, hidden), adds)


def gather(s: Sizes) -> Case:
    shape, dim = s.sizes(3), s.dim(3)
    places = [s.pick(size, max(1, size - 1)) for size in shape]
    places[dim] = s.size()
    return case(aten.gather.default, floats(*shape), dim, ids(shape[dim], *places))


def scatter(s: Sizes) -> Case:
    shape, dim = s.sizes(2), s.dim(2)
    places = [*shape]
    places[dim] = 1
    value = floats(*places)
    return case(aten.scatter.src, floats(*shape), dim, ids(shape[dim], *places), value)


def scatter_add(s: Sizes) -> Case:
    shape, dim = s.sizes(2), s.dim(2)
    places = [*shape]
    places[dim] = s.size()
    return case(aten.scatter_add.default, floats(*shape), dim, ids(shape[dim], *places), floats(*places))


def scatter_reduce(s: Sizes) -> Case:
    shape, dim = s.sizes(2), s.dim(2)
    places = [*shape]
    places[dim] = s.size()
    how = s.pick("sum", "mean", "amax", "amin")
    args = (floats(*shape), dim, ids(shape[dim], *places), floats(*places), how)
    return case(aten.scatter_reduce.two, *args, include_self=s.flag())


def cross_entropy(s: Sizes) -> Case:
    rows, classes, space = s.size(2, 3, 4, 8), s.size(2, 4, 6), s.sizes(s.size(0, 0, 1, 2))
    target = ids(classes, rows, *space)
    target[torch.rand(target.shape) < 0.3] = -100
    target.view(-1)[0] = 1
    weight = positive(classes).detach() if s.flag() else None
    smoothing = s.pick(0.0, 0.1) if weight is None else 0.0
    args = (floats(rows, classes, *space), target, weight, s.pick(0, 1, 2), -100, smoothing)
    return case(aten.cross_entropy_loss.default, *args)


def soft_labels(s: Sizes) -> Case:
    shape = (s.size(2, 4), 6, *s.sizes(s.size(0, 1)))
    return case(aten.cross_entropy_loss.default, floats(*shape), positive(*shape).detach(), None, s.pick(0, 1, 2))


def nll(s: Sizes) -> Case:
    rows, classes = s.size(2, 3, 4, 8), s.size(2, 4)
    return case(aten.nll_loss.default, floats(rows, classes), ids(classes, rows), None, s.pick(0, 1, 2), 1)


def distance(function: Callable[..., object]) -> Builder:
    def build(s: Sizes) -> Case:
        shape = s.sizes(s.size(1, 2, 3))
        return case(function, floats(*shape), floats(*shape), s.pick(0, 1, 2))

    return build


def broadcast_divergence(s: Sizes) -> Case:
    shape = s.sizes(s.size(1, 2, 3))
    narrow = tuple(s.pick(1, size) for size in shape)[s.size(0, 1) :]
    sides = s.pick((shape, narrow), (narrow, shape))
    return case(aten.kl_div.default, floats(*sides[0]), floats(*sides[1]), s.pick(0, 1, 2), log_target=True)


def with_logits(s: Sizes) -> Case:
    shape = s.sizes(2)
    target = torch.rand(shape, dtype=torch.float64)
    return case(aten.binary_cross_entropy_with_logits.default, floats(*shape), target, None, None, s.pick(0, 1, 2))


def layer_norm(function: Callable[..., object]) -> Builder:
    def build(s: Sizes) -> Case:
        shape = s.sizes(3)
        last = shape[-s.size(1, 2) :]
        return case(function, floats(*shape), list(last), floats(*last), floats(*last), 1e-5)

    return build


def rms_norm(s: Sizes) -> Case:
    shape = s.sizes(3)
    return case(aten.rms_norm.default, floats(*shape), [shape[-1]], floats(shape[-1]), 1e-6)


def batch_norm(s: Sizes) -> Case:
    channels, training = s.size(), s.flag()
    x = floats(s.size(2, 4), channels, *s.sizes(s.size(0, 1, 2)))
    buffers = (plain(channels), positive(channels).detach())
    args = (floats(channels), floats(channels), *buffers, training, 0.1, 1e-5, False)
    return case(aten.batch_norm.default, x, *args)


def group_norm(s: Sizes) -> Case:
    groups = s.size(2, 4)
    channels = groups * s.size(1, 2)
    x = floats(s.size(2, 4), channels, *s.sizes(s.size(1, 2)))
    return case(aten.group_norm.default, x, groups, floats(channels), floats(channels), 1e-5)


def instance_norm(s: Sizes) -> Case:
    channels = s.size()
    x = floats(s.size(2, 4), channels, 4, 3)
    args = (floats(channels), floats(channels), None, None, True, 0.1, 1e-5, False)
    return case(aten.instance_norm.default, x, *args)


CASES: dict[str, Builder] = {
    "softmax": lambda s: case(aten.softmax.int, s.floats(3), s.dim(3)),
    "log_softmax": lambda s: case(aten.log_softmax.int, s.floats(3), s.dim(3)),
    "layer_norm": layer_norm(aten.layer_norm.default),
    "native_layer_norm": layer_norm(aten.native_layer_norm.default),
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "sum": reduction(aten.sum.dim_IntList),
    "sum of all": lambda s: case(aten.sum.default, s.floats(2)),
    "mean": reduction(aten.mean.dim),
    "mean of all": lambda s: case(aten.mean.default, s.floats(2)),
    "amax": reduction(aten.amax.default),
    "max": lambda s: case(aten.max.dim, s.floats(3), s.dim(3), s.flag()),
    "var": lambda s: case(aten.var.correction, floats(4, 6, 3), [s.dim(3)], correction=1, keepdim=s.flag()),
    "norm of a matrix": lambda s: case(aten.linalg_norm.ord_str, s.floats(4), "fro", [1, 3], s.flag()),
    "norm by linalg": lambda s: case(aten.linalg_norm.default, s.floats(3), 2, [s.dim(3)], s.flag()),
    "norm of the last two": lambda s: case(aten.linalg_matrix_norm.str_ord, s.floats(4)),
    "norm": lambda s: case(aten.linalg_vector_norm.default, s.floats(3), 2, [s.dim(3)], s.flag()),
    "logsumexp": reduction(aten.logsumexp.default),
    "argmax": lambda s: case(aten.argmax.default, plain(*s.sizes(3)), s.dim(3)),
    "any": lambda s: case(aten.any.dim, plain(*s.sizes(3)) > 1, s.dim(3)),
    "cumsum": lambda s: case(aten.cumsum.default, s.floats(3), s.dim(3)),
    "cumprod": lambda s: case(aten.cumprod.default, s.floats(3), s.dim(3)),
    "diff": lambda s: case(aten.diff.default, floats(4, 6), 1, -1, floats(4, 1)),
    "sort": lambda s: case(aten.sort.default, s.floats(3), s.dim(3)),
    "stable sort": lambda s: case(aten.sort.stable, s.floats(3), stable=True, dim=s.dim(3)),
    "topk": lambda s: case(aten.topk.default, floats(4, 6, 8), 2, s.dim(3)),
    "one_hot": lambda s: case(aten.one_hot.default, ids(5, *s.sizes(2)), 5),
    "histc": lambda s: case(aten.histc.default, ids(4, *s.sizes(2)).double(), 4, 0, 3),
    "embedding": embedding,
    "embedding_bag": embedding_bag,
    "index": index,
    "index_select": index_select,
    "index_put": index_put,
    "gather": gather,
    "scatter": scatter,
    "scatter_add": scatter_add,
    "scatter_reduce": scatter_reduce,
    "cross_entropy": cross_entropy,
    "cross_entropy with probabilities": soft_labels,
    "nll_loss": nll,
    "mse_loss": distance(aten.mse_loss.default),
    "l1_loss": distance(aten.l1_loss.default),
    "smooth_l1_loss": distance(aten.smooth_l1_loss.default),
    "binary_cross_entropy_with_logits": with_logits,
    "kl_div": distance(aten.kl_div.default),
    "kl_div, one side broadcast": broadcast_divergence,
}


@pytest.mark.parametrize("name", CASES)
def test_pieces_put_together_are_the_whole_reduction(name: str) -> None:
    pieces_agree(CASES[name])


def test_a_reduction_of_all_is_not_mistaken_for_one_of_dim_1() -> None:
    found = case(aten.var.default, floats(4, 6), True)
    assert [choice.name for choice in split_choices(found.call)] == ["whole", "deferred"]


def test_gradients_scaled_by_how_often_a_row_is_read_are_not_cut() -> None:
    found = case(aten.embedding.default, floats(4, 6), ids(4, 8), -1, True)
    assert [choice.name for choice in split_choices(found.call)] == ["whole", "deferred"]


@pytest.mark.parametrize(("shape", "cut"), [((8, 4, 16, 1), False), ((1, 4, 8, 8), False), ((8, 4, 8, 8), True)])
def test_channels_of_a_batch_norm_stay_whole_where_memory_may_be_read_two_ways(
    shape: tuple[int, ...], cut: bool
) -> None:
    made = case(aten.batch_norm.default, floats(*shape), floats(4), floats(4), None, None, True, 0.1, 1e-5, False)
    assert ("channels" in [choice.name for choice in split_choices(made.call)]) == cut


def test_torch_takes_gradients_of_one_layout_for_another_in_batch_norm() -> None:
    """Where it does not any more, `_laid_two_ways` of the rules of normalisations can go."""
    x, weight, bias = torch.randn(8, 4, 16, 1), torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    made = torch.nn.functional.batch_norm(x.requires_grad_(), None, None, weight, bias, True)
    gradient = torch.empty_strided(x.shape, (64, 1, 4, 1)).copy_(torch.randn(x.shape))
    (found,) = torch.autograd.grad(made, bias, gradient)
    assert not torch.allclose(found, gradient.sum((0, 2, 3)), atol=1e-3)
