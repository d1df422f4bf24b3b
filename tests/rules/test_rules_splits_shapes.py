"""Splits of elementwise ops, views and moves of data by execution: pieces put together are the whole op."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import strategies as st

from split_cases import Builder, Sizes, case, floats, pieces_agree, plain
from split_ranks import Case

aten = torch.ops.aten


def where(s: Sizes) -> Case:
    a, b = s.broadcast()
    return case(aten.where.self, torch.rand(a.shape) < 0.5, a, b)


def masked_fill(s: Sizes) -> Case:
    a, b = s.broadcast()
    return case(aten.masked_fill.Scalar, a, torch.rand(b.shape) < 0.5, s.pick(0, -1.0))


def reshape(s: Sizes) -> Case:
    shape = s.pick((2, 3, 8), (4, 6), (6, 4, 2), (12,), (1, 4, 6), (8, 1, 2), (2, 2, 4, 3))
    total = math.prod(shape)
    ways = ((total,), (shape[0], -1), (-1, shape[-1]), (2, -1, 2), (4, -1), (1, total, 1), (*shape[:-1], 1, shape[-1]))
    sizes = s.pick(*(way for way in ways if total % abs(math.prod(way)) == 0))
    return case(s.pick(aten.view.default, aten.reshape.default), floats(*shape), list(sizes))


def expand(s: Sizes) -> Case:
    shape = tuple(s.pick(1, 4) for _ in range(3))
    sizes = [s.pick(size, -1) if size != 1 else s.size(1, 2, 4) for size in shape]
    return case(aten.expand.default, floats(*shape), [*([s.size(2, 3)] if s.flag() else []), *sizes])


def slice_(s: Sizes) -> Case:
    shape, dim = s.sizes(3), s.dim(3)
    start = s.size(*range(shape[dim]))
    end = s.pick(*range(start + 1, shape[dim] + 1), 2**63 - 1)
    return case(aten.slice.Tensor, floats(*shape), dim, start, end, s.size(1, 2))


def narrow(s: Sizes) -> Case:
    shape, dim = s.sizes(3), s.dim(3)
    start = s.size(*range(shape[dim]))
    return case(aten.narrow.default, floats(*shape), dim, start, s.size(*range(1, shape[dim] - start + 1)))


def pad(s: Sizes) -> Case:
    sizes = [s.size(0, 0, 1, 2, -1) for _ in range(2 * s.size(1, 2, 3))]
    return case(aten.pad.default, s.floats(3), sizes, "constant", s.pick(0.0, -100.0))


def cat(s: Sizes) -> Case:
    shape, dim = list(s.sizes(3)), s.dim(3)
    other = [*shape]
    other[dim] = s.size()
    return case(aten.cat.default, [floats(*shape), floats(*other)], dim)


def stack(s: Sizes) -> Case:
    shape = s.sizes(2)
    return case(aten.stack.default, [floats(*shape), floats(*shape)], s.dim(3))


CASES: dict[str, Builder] = {
    "add": lambda s: case(aten.add.Tensor, *s.broadcast()),
    "frexp": lambda s: case(aten.frexp.Tensor, s.floats(2)),
    "polygamma": lambda s: case(aten.polygamma.default, 1, s.floats(2).abs() + 1),
    "special_xlog1py": lambda s: case(aten.special_xlog1py.default, *(one.abs() for one in s.broadcast())),
    "add a number": lambda s: case(aten.add.Tensor, s.floats(2), s.pick(0, 1.5)),
    "sub": lambda s: case(aten.sub.Tensor, *s.broadcast(), alpha=2),
    "mul": lambda s: case(aten.mul.Tensor, *s.broadcast()),
    "mul by a number": lambda s: case(aten.mul.Tensor, s.floats(2), 1.5),
    "div": lambda s: case(aten.div.Tensor, *s.broadcast()),
    "div that rounds": lambda s: case(aten.div.Tensor_mode, *s.broadcast(), rounding_mode="floor"),
    "pow": lambda s: case(aten.pow.Tensor_Scalar, s.floats(3), 3),
    "minimum": lambda s: case(aten.min.other, *s.broadcast()),
    "gelu": lambda s: case(aten.gelu.default, s.floats(3)),
    "silu": lambda s: case(aten.silu.default, s.floats(3)),
    "neg": lambda s: case(aten.neg.default, s.floats(3)),
    "cast": lambda s: case(aten.to.dtype, s.floats(2), torch.float64),
    "cast to whole numbers": lambda s: case(aten.to.dtype, plain(*s.sizes(2)), torch.int64),
    "compare": lambda s: case(aten.le.Tensor, *(one.detach() for one in s.broadcast())),
    "where": where,
    "masked_fill": masked_fill,
    "no dropout": lambda s: case(aten.dropout.default, s.floats(3), 0.0, True),
    "zeros_like": lambda s: case(aten.zeros_like.default, plain(*s.sizes(3))),
    "transpose": lambda s: case(aten.transpose.int, s.floats(3), s.dim(3), s.dim(3)),
    "permute": lambda s: case(aten.permute.default, s.floats(3), list(s.data.draw(st.permutations(range(3))))),
    "movedim": lambda s: case(aten.movedim.intlist, s.floats(4), [0, 2], s.pick([1, 3], [3, 0])),
    "t": lambda s: case(aten.t.default, s.floats(s.size(1, 2))),
    "reshape": reshape,
    "view_as": lambda s: case(aten.view_as.default, floats(4, 6), plain(4, 2, 3)),
    "flatten": lambda s: case(aten.flatten.using_ints, s.floats(4), s.pick(0, 1, 2), s.pick(-1, 2)),
    "unflatten": lambda s: case(aten.unflatten.int, floats(3, 12), 1, s.pick([4, 3], [2, 6], [-1, 2])),
    "squeeze": lambda s: case(aten.squeeze.dim, floats(4, 1, 6), 1),
    "unsqueeze": lambda s: case(aten.unsqueeze.default, s.floats(3), s.dim(4)),
    "expand": expand,
    "expand_as": lambda s: case(aten.expand_as.default, floats(4, 1), plain(2, 4, 6)),
    "repeat": lambda s: case(aten.repeat.default, floats(4, 1), s.pick([1, 6], [2, 1, 1], [2, 4])),
    "repeat_interleave": lambda s: case(aten.repeat_interleave.self_int, s.floats(3), 2, s.dim(3)),
    "select": lambda s: case(aten.select.int, s.floats(3), s.dim(3), 0),
    "slice": slice_,
    "narrow": narrow,
    "pad": pad,
    "shift": lambda s: case(aten.pad.default, s.floats(3), s.pick([1, -1], [0, 0, -1, 1], [-1, 1, 1, -1]), "constant"),
    "cat": cat,
    "stack": stack,
    "split": lambda s: case(aten.split.Tensor, floats(4, 6, 8), s.size(2, 3), s.dim(3)),
    "chunk": lambda s: case(aten.chunk.default, floats(4, 6, 8), 2, s.dim(3)),
    "unbind": lambda s: case(aten.unbind.int, s.floats(3), s.dim(3)),
    "flip": lambda s: case(aten.flip.default, s.floats(3), [s.dim(3)]),
    "roll": lambda s: case(aten.roll.default, s.floats(3), [1], [s.dim(3)]),
    "triu": lambda s: case(aten.triu.default, s.floats(3), 1),
    "diagonal": lambda s: case(aten.diagonal.default, s.floats(3), 0, 0, 2),
    "slice_scatter": lambda s: case(aten.slice_scatter.default, floats(4, 6), floats(4, 3), 1, 1, 4),
    "select_scatter": lambda s: case(aten.select_scatter.default, floats(4, 6), floats(6), 0, 1),
    "glu": lambda s: case(aten.glu.default, floats(4, 6, 8), s.dim(3)),
    "arange": lambda s: case(aten.arange.start_step, 2, 2 + 3 * s.size(2, 4, 6), 3),
    "zeros": lambda s: case(aten.zeros.default, list(s.sizes(2))),
    "new_zeros": lambda s: case(aten.new_zeros.default, plain(4, 6, 8), [4, 6, s.size(1, 3, 8)]),
    "new_full": lambda s: case(aten.new_full.default, plain(2), list(s.sizes(2)), 3.0),
}


@pytest.mark.parametrize("name", CASES)
def test_pieces_put_together_are_the_whole_tensor(name: str) -> None:
    pieces_agree(CASES[name])
