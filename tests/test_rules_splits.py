"""Every split rule by execution: pieces put together are the whole op, forward and backward, on random shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from split_ranks import Case, checked

aten = torch.ops.aten
Builder = Callable[["Sizes"], Case]


@dataclass
class Sizes:
    """Random sizes and tensors of one example."""

    data: st.DataObject

    def size(self, *options: int) -> int:
        return self.data.draw(st.sampled_from(options or (1, 2, 3, 4, 6, 8)))

    def sizes(self, count: int) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(count))

    def rank(self, low: int = 1, high: int = 4) -> int:
        return self.data.draw(st.integers(low, high))

    def dim(self, rank: int) -> int:
        return self.data.draw(st.integers(-rank, rank - 1))

    def flag(self) -> bool:
        return self.data.draw(st.booleans())

    def pick(self, *options):
        return self.data.draw(st.sampled_from(options))


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def positive(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64).add_(0.5).requires_grad_()


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def case(function: Callable[..., object], *args: object, **kwargs: object) -> Case:
    return Case(function=function, args=args, kwargs=kwargs)


def broadcast_pair(s: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    shape = s.sizes(s.rank())
    other = tuple(s.pick(1, size) for size in shape)[s.size(0, 1) :]
    return positive(*shape), positive(*other)


def linear(s: Sizes) -> Case:
    *lead, k, n = (*s.sizes(s.rank(1, 3)), s.size(), s.size())
    bias = (floats(n),) if s.flag() else ()
    return case(aten.linear.default, floats(*lead, k), floats(n, k), *bias)


def addmm(s: Sizes) -> Case:
    m, k, n = s.sizes(3)
    bias = s.pick((n,), (m, n), (1, n))
    return case(aten.addmm.default, floats(*bias), floats(m, k), floats(k, n))


def matmul(s: Sizes) -> Case:
    m, k, n = s.sizes(3)
    lead = s.sizes(s.rank(0, 2))
    other = tuple(s.pick(1, size) for size in lead)[s.size(0, 1) :]
    left, right = s.pick(
        ((*lead, m, k), (*other, k, n)), ((*other, m, k), (*lead, k, n)), ((*lead, m, k), (k,)), ((k,), (*lead, k, n))
    )
    return case(aten.matmul.default, floats(*left), floats(*right))


def attention(s: Sizes) -> Case:
    batch, group, kv, query, depth = (
        s.size(1, 2, 4),
        s.size(1, 2, 4),
        s.size(1, 2, 3, 4),
        s.size(2, 3, 4, 8),
        s.size(2, 3),
    )
    heads = group * kv
    keys = query if s.flag() else s.size()
    causal = s.flag()
    args: list[object] = [
        floats(batch, heads, query, depth),
        floats(batch, kv, keys, depth),
        floats(batch, kv, keys, depth),
    ]
    if causal:
        args += [None, 0.0, True]
    elif s.flag():
        mask = (s.pick(1, batch), s.pick(1, heads), s.pick(1, query), keys)[s.size(0, 1, 2) :]
        args += [torch.randn(mask, dtype=torch.float64)]
    return case(aten.scaled_dot_product_attention.default, *args, enable_gqa=True)


def reshape(s: Sizes) -> Case:
    shape = s.pick((2, 3, 8), (4, 6), (6, 4, 2), (12,), (1, 4, 6), (8, 1, 2), (2, 2, 4, 3))
    total = math.prod(shape)
    options = [
        (total,),
        (shape[0], -1),
        (-1, shape[-1]),
        (2, -1, 2),
        (4, -1),
        (1, total, 1),
        (*shape[:-1], 1, shape[-1]),
    ]
    fit = [option for option in options if total % abs(math.prod(option)) == 0]
    return case(s.pick(aten.view.default, aten.reshape.default), floats(*shape), list(s.pick(*fit)))


def expand(s: Sizes) -> Case:
    shape = tuple(s.pick(1, 4) for _ in range(3))
    sizes = [s.pick(size, -1) if size != 1 else s.size(1, 2, 4) for size in shape]
    return case(aten.expand.default, floats(*shape), [*([s.size(2, 3)] if s.flag() else []), *sizes])


def slice_(s: Sizes) -> Case:
    shape = s.sizes(3)
    dim = s.dim(3)
    size = shape[dim]
    start = s.size(*range(size))
    end = s.pick(*range(start + 1, size + 1), 2**63 - 1)
    return case(aten.slice.Tensor, floats(*shape), dim, start, end, s.size(1, 2))


def pad(s: Sizes) -> Case:
    shape = s.sizes(3)
    sizes = [s.size(0, 0, 1, 2) for _ in range(2 * s.rank(1, 3))]
    return case(aten.pad.default, floats(*shape), sizes, "constant", s.pick(0.0, -100.0))


def cat(s: Sizes) -> Case:
    shape = list(s.sizes(3))
    dim = s.dim(3)
    other = list(shape)
    other[dim] = s.size()
    return case(aten.cat.default, [floats(*shape), floats(*other)], dim)


def reduction(function: Callable[..., object]) -> Builder:
    def build(s: Sizes) -> Case:
        shape = s.sizes(3)
        dims = s.pick([0], [1], [-1], [0, 2], [0, 1, 2])
        return case(function, floats(*shape), dims, s.flag())

    return build


def embedding(s: Sizes) -> Case:
    rows, hidden = s.size(4, 6, 8, 12), s.size()
    return case(aten.embedding.default, floats(rows, hidden), ids(rows, *s.sizes(s.rank(1, 2))), s.pick(-1, 0, 3))


def index(s: Sizes) -> Case:
    a, b, c = s.size(2, 4), s.size(3, 4), s.size(2, 4)
    one, two = (s.size(), s.size()), (s.size(2, 4),)
    given = s.pick(
        [ids(a, *one)], [None, ids(b, *one)], [ids(a, one[0], 1), ids(b, two[0])], [ids(a, *two), None, ids(c, *two)]
    )
    return case(aten.index.Tensor, floats(a, b, c), given)


def gather(s: Sizes) -> Case:
    shape, dim = s.sizes(3), s.dim(3)
    places = [s.pick(size, max(1, size - 1)) for size in shape]
    places[dim] = s.size()
    return case(aten.gather.default, floats(*shape), dim, ids(shape[dim], *places))


def scatter_add(s: Sizes) -> Case:
    shape, dim = s.sizes(2), s.dim(2)
    places = list(shape)
    places[dim] = s.size()
    return case(aten.scatter_add.default, floats(*shape), dim, ids(shape[dim], *places), floats(*places))


def index_put(s: Sizes) -> Case:
    a, b, n = s.size(4, 8), s.size(), s.size(2, 4)
    where = ids(a, n) if (adds := s.flag()) else torch.randperm(a)[:n]
    return case(aten.index_put.default, floats(a, b), [where], floats(n, b), adds)


def cross_entropy(s: Sizes) -> Case:
    rows, classes = s.size(2, 3, 4, 8), s.size(2, 4, 6)
    space = s.sizes(s.size(0, 0, 1, 2))
    target = ids(classes, rows, *space)
    target[torch.rand(target.shape) < 0.3] = -100
    target.view(-1)[0] = 1
    weight = positive(classes).detach() if s.flag() else None
    return case(
        aten.cross_entropy_loss.default,
        floats(rows, classes, *space),
        target,
        weight,
        s.pick(0, 1, 2),
        -100,
        s.pick(0.0, 0.1) if weight is None else 0.0,
    )


def distance(function: Callable[..., object]) -> Builder:
    def build(s: Sizes) -> Case:
        shape = s.sizes(s.rank(1, 3))
        return case(function, floats(*shape), floats(*shape), s.pick(0, 1, 2))

    return build


def layer_norm(s: Sizes) -> Case:
    shape = s.sizes(3)
    kept = s.size(1, 2)
    return case(
        aten.layer_norm.default,
        floats(*shape),
        list(shape[-kept:]),
        floats(*shape[-kept:]),
        floats(*shape[-kept:]),
        1e-5,
    )


def rms_norm(s: Sizes) -> Case:
    shape = s.sizes(3)
    return case(aten.rms_norm.default, floats(*shape), [shape[-1]], floats(shape[-1]), 1e-6)


def batch_norm(s: Sizes) -> Case:
    channels = s.size()
    shape = (s.size(2, 4), channels, *s.sizes(s.rank(0, 2)))
    training = s.flag()
    buffers = (torch.randn(channels, dtype=torch.float64), torch.rand(channels, dtype=torch.float64) + 0.5)
    return case(
        aten.batch_norm.default,
        floats(*shape),
        floats(channels),
        floats(channels),
        *buffers,
        training,
        0.1,
        1e-5,
        False,
    )


def group_norm(s: Sizes) -> Case:
    groups = s.size(2, 4)
    channels = groups * s.size(1, 2)
    shape = (s.size(2, 4), channels, *s.sizes(s.rank(1, 2)))
    return case(aten.group_norm.default, floats(*shape), groups, floats(channels), floats(channels), 1e-5)


CASES: dict[str, Builder] = {
    "linear": linear,
    "addmm": addmm,
    "mm": lambda s: (lambda m, k, n: case(aten.mm.default, floats(m, k), floats(k, n)))(*s.sizes(3)),
    "bmm": lambda s: (lambda b, m, k, n: case(aten.bmm.default, floats(b, m, k), floats(b, k, n)))(*s.sizes(4)),
    "baddbmm": lambda s: (
        lambda b, m, k, n: case(aten.baddbmm.default, floats(b, 1, n), floats(b, m, k), floats(b, k, n))
    )(*s.sizes(4)),
    "matmul": matmul,
    "einsum": lambda s: (
        lambda b, m, k, n: case(
            aten.einsum.default, s.pick("bmk,bkn->bmn", "bmk,bkn->nm", "bmk,bkn"), [floats(b, m, k), floats(b, k, n)]
        )
    )(*s.sizes(4)),
    "attention": attention,
    "add": lambda s: case(aten.add.Tensor, *broadcast_pair(s)),
    "add a number": lambda s: case(aten.add.Tensor, floats(*s.sizes(2)), s.pick(0, 1.5)),
    "sub": lambda s: case(aten.sub.Tensor, *broadcast_pair(s), alpha=2),
    "mul": lambda s: case(aten.mul.Tensor, *broadcast_pair(s)),
    "mul by a number": lambda s: case(aten.mul.Tensor, floats(*s.sizes(2)), 1.5),
    "div": lambda s: case(aten.div.Tensor, *broadcast_pair(s)),
    "pow": lambda s: case(aten.pow.Tensor_Scalar, floats(*s.sizes(3)), 3),
    "minimum": lambda s: case(aten.min.other, *broadcast_pair(s)),
    "gelu": lambda s: case(aten.gelu.default, floats(*s.sizes(3))),
    "silu": lambda s: case(aten.silu.default, floats(*s.sizes(3))),
    "neg": lambda s: case(aten.neg.default, floats(*s.sizes(3))),
    "cast": lambda s: case(aten.to.dtype, floats(*s.sizes(2)), torch.float64),
    "compare": lambda s: case(aten.le.Tensor, *(one.detach() for one in broadcast_pair(s))),
    "where": lambda s: (lambda a, b: case(aten.where.self, torch.rand(a.shape) < 0.5, a, b))(*broadcast_pair(s)),
    "masked_fill": lambda s: (
        lambda a, b: case(aten.masked_fill.Scalar, a, torch.rand(b.shape) < 0.5, s.pick(0, -1.0))
    )(*broadcast_pair(s)),
    "no dropout": lambda s: case(aten.dropout.default, floats(*s.sizes(3)), 0.0, True),
    "transpose": lambda s: case(aten.transpose.int, floats(*s.sizes(3)), s.dim(3), s.dim(3)),
    "permute": lambda s: case(aten.permute.default, floats(*s.sizes(3)), list(s.data.draw(st.permutations(range(3))))),
    "movedim": lambda s: case(aten.movedim.intlist, floats(*s.sizes(4)), [0, 2], s.pick([1, 3], [3, 0])),
    "t": lambda s: case(aten.t.default, floats(*s.sizes(2))),
    "reshape": reshape,
    "flatten": lambda s: case(aten.flatten.using_ints, floats(*s.sizes(4)), s.pick(0, 1, 2), s.pick(-1, 2)),
    "unflatten": lambda s: case(aten.unflatten.int, floats(3, 12), 1, s.pick([4, 3], [2, 6], [-1, 2])),
    "squeeze": lambda s: case(aten.squeeze.dim, floats(4, 1, 6), 1),
    "unsqueeze": lambda s: case(aten.unsqueeze.default, floats(*s.sizes(3)), s.dim(4)),
    "expand": expand,
    "expand_as": lambda s: case(aten.expand_as.default, floats(4, 1), torch.zeros(2, 4, 6)),
    "repeat": lambda s: case(aten.repeat.default, floats(4, 1), s.pick([1, 6], [2, 1, 1], [2, 4])),
    "select": lambda s: case(aten.select.int, floats(*s.sizes(3)), s.dim(3), 0),
    "slice": slice_,
    "pad": pad,
    "cat": cat,
    "stack": lambda s: (lambda shape: case(aten.stack.default, [floats(*shape), floats(*shape)], s.dim(3)))(s.sizes(2)),
    "split": lambda s: case(aten.split.Tensor, floats(4, 6, 8), s.size(2, 3), s.dim(3)),
    "chunk": lambda s: case(aten.chunk.default, floats(4, 6, 8), 2, s.dim(3)),
    "unbind": lambda s: case(aten.unbind.int, floats(*s.sizes(3)), s.dim(3)),
    "flip": lambda s: case(aten.flip.default, floats(*s.sizes(3)), [s.dim(3)]),
    "roll": lambda s: case(aten.roll.default, floats(*s.sizes(3)), [1], [s.dim(3)]),
    "triu": lambda s: case(aten.triu.default, floats(*s.sizes(3)), 1),
    "diagonal": lambda s: case(aten.diagonal.default, floats(*s.sizes(3)), 0, 0, 2),
    "slice_scatter": lambda s: case(aten.slice_scatter.default, floats(4, 6), floats(4, 3), 1, 1, 4),
    "select_scatter": lambda s: case(aten.select_scatter.default, floats(4, 6), floats(6), 0, 1),
    "softmax": lambda s: case(aten.softmax.int, floats(*s.sizes(3)), s.dim(3)),
    "log_softmax": lambda s: case(aten.log_softmax.int, floats(*s.sizes(3)), s.dim(3)),
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "sum": reduction(aten.sum.dim_IntList),
    "sum of all": lambda s: case(aten.sum.default, floats(*s.sizes(2))),
    "mean": reduction(aten.mean.dim),
    "mean of all": lambda s: case(aten.mean.default, floats(*s.sizes(2))),
    "amax": reduction(aten.amax.default),
    "max": lambda s: case(aten.max.dim, floats(*s.sizes(3)), s.dim(3), s.flag()),
    "var": lambda s: case(aten.var.correction, floats(4, 6, 3), [s.dim(3)], correction=1, keepdim=s.flag()),
    "norm": lambda s: case(aten.linalg_vector_norm.default, floats(*s.sizes(3)), 2, [s.dim(3)], s.flag()),
    "argmax": lambda s: case(aten.argmax.default, floats(*s.sizes(3)).detach(), s.dim(3)),
    "cumsum": lambda s: case(aten.cumsum.default, floats(*s.sizes(3)), s.dim(3)),
    "diff": lambda s: case(aten.diff.default, floats(4, 6), 1, -1, floats(4, 1)),
    "sort": lambda s: case(aten.sort.default, floats(*s.sizes(3)), s.dim(3)),
    "topk": lambda s: case(aten.topk.default, floats(4, 6, 8), 2, s.dim(3)),
    "one_hot": lambda s: case(aten.one_hot.default, ids(5, *s.sizes(2)), 5),
    "embedding": embedding,
    "index": index,
    "index_select": lambda s: case(
        aten.index_select.default, floats(4, 6, 8), (dim := s.dim(3)), ids((4, 6, 8)[dim], s.size())
    ),
    "gather": gather,
    "scatter_add": scatter_add,
    "index_put": index_put,
    "cross_entropy": cross_entropy,
    "cross_entropy with probabilities": lambda s: case(
        aten.cross_entropy_loss.default, floats(4, 6), torch.rand(4, 6, dtype=torch.float64), None, s.pick(0, 1, 2)
    ),
    "mse": distance(aten.mse_loss.default),
    "l1": distance(aten.l1_loss.default),
    "arange": lambda s: case(aten.arange.start_step, 2, 2 + 3 * s.size(2, 4, 6), 3),
    "zeros": lambda s: case(aten.zeros.default, list(s.sizes(2))),
    "new_full": lambda s: case(aten.new_full.default, floats(2).detach(), list(s.sizes(2)), 3.0),
}


@pytest.mark.parametrize("name", CASES)
def test_pieces_put_together_are_the_whole_op(name: str) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(data=st.data(), degree=st.integers(2, 4), seed=st.integers(0, 99))
    def agree(data: st.DataObject, degree: int, seed: int) -> None:
        torch.manual_seed(seed)
        checked(CASES[name](Sizes(data)), degree, seed)

    agree()
