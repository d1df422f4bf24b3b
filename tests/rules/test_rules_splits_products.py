"""Splits of products, convolutions and attention by execution: pieces put together are the whole op."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from split_cases import Builder, Sizes, case, floats, pieces_agree, plain
from split_ranks import Case

pytestmark = pytest.mark.in_turns

aten = torch.ops.aten


def linear(s: Sizes) -> Case:
    *lead, k, n = (*s.sizes(s.size(0, 1, 2)), s.size(), s.size())
    bias = (floats(n),) if s.flag() else ()
    return case(aten.linear.default, floats(*lead, k), floats(n, k), *bias)


def mm(s: Sizes) -> Case:
    m, k, n = s.sizes(3)
    return case(aten.mm.default, floats(m, k), floats(k, n))


def addmm(s: Sizes) -> Case:
    m, k, n = s.sizes(3)
    bias = floats(n) if s.flag() else floats(s.pick(1, m), n)
    return case(aten.addmm.default, bias, floats(m, k), floats(k, n))


def bmm(s: Sizes) -> Case:
    b, m, k, n = s.sizes(4)
    return case(aten.bmm.default, floats(b, m, k), floats(b, k, n))


def baddbmm(s: Sizes) -> Case:
    b, m, k, n = s.sizes(4)
    return case(aten.baddbmm.default, floats(b, 1, n), floats(b, m, k), floats(b, k, n))


def matmul(s: Sizes) -> Case:
    m, k, n = s.sizes(3)
    lead = s.sizes(s.size(0, 1, 2))
    other = tuple(s.pick(1, size) for size in lead)[s.size(0, 1) :]
    shapes = (((*lead, m, k), (*other, k, n)), ((*other, m, k), (*lead, k, n)), ((*lead, m, k), (k,)), ((k,), (k, n)))
    left, right = s.pick(*shapes)
    return case(aten.matmul.default, floats(*left), floats(*right))


def vectors(s: Sizes) -> Case:
    m, k = s.sizes(2)
    operands = {aten.mv.default: ((m, k), (k,)), aten.dot.default: ((k,), (k,)), aten.outer.default: ((m,), (k,))}
    function = s.pick(*operands)
    return case(function, *(floats(*shape) for shape in operands[function]))


def einsum(s: Sizes) -> Case:
    b, m, k, n = s.sizes(4)
    equation = s.pick("bmk,bkn->bmn", "bmk,bkn->nm", "bmk,bkn", "bmk,bkn->")
    return case(aten.einsum.default, equation, [floats(b, m, k), floats(b, k, n)])


def einsum_with_dots(s: Sizes) -> Case:
    b, m, k, n = s.sizes(4)
    equation = s.pick("...mk,...kn->...mn", "m...k,k...n->...nm", "...mk,...kn", "...mk,...kn->mn", "...mk,...kn->...")
    lead = s.pick((b, 2), (b,), (2, 1), ())
    shapes = ((*lead, b, m, k), (b, k, n)) if not equation.startswith("m") else ((m, *lead, k), (k, *lead[-1:], n))
    return case(aten.einsum.default, equation, [floats(*shape) for shape in shapes])


def attention(s: Sizes) -> Case:
    batch, group, kv, query = s.size(1, 2, 4), s.size(1, 2, 4), s.size(1, 2, 3, 4), s.size(2, 3, 4, 8)
    depth, heads = s.size(2, 3), group * kv
    keys = query if s.flag() else s.size()
    q, k, v = floats(batch, heads, query, depth), floats(batch, kv, keys, depth), floats(batch, kv, keys, depth)
    if s.flag():
        return case(aten.scaled_dot_product_attention.default, q, k, v, None, 0.0, True, enable_gqa=True)
    mask = (s.pick(1, batch), s.pick(1, heads), s.pick(1, query), keys)[s.size(0, 1, 2) :]
    masks = {"attn_mask": plain(*mask)} if s.flag() else {}
    return case(aten.scaled_dot_product_attention.default, q, k, v, enable_gqa=True, scale=0.3, **masks)


def factors(shape: torch.Size, probability: float) -> torch.Tensor:
    """The factors of a dropout that depends on nothing but the place in the whole tensor."""
    keep = (torch.arange(shape.numel()) * 7919 % 97).double() / 97 >= probability
    return (keep / (1 - probability)).view(shape)


def keyed_dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    assert train
    return x * factors(x.shape, p)


def keyed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, p: float, causal: bool
) -> torch.Tensor:
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), float("-inf"))
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) * factors(scores.shape, p)) @ value


def dropout(s: Sizes) -> Case:
    return Case(function=keyed_dropout, args=(s.floats(3), 0.3, True), target="aten::dropout")


def attention_with_dropout(s: Sizes) -> Case:
    kv, query, batch = s.size(1, 2, 4), s.size(2, 4, 6), s.size(2, 3)
    q, k, v = (floats(batch, heads, query, 3) for heads in (2 * kv, kv, kv))
    causal = s.flag()
    mask = None if causal else plain(s.size(1, batch), 1, query, query)
    args = (q, k, v, mask, 0.3, causal)
    return Case(function=keyed_attention, args=args, target="aten::scaled_dot_product_attention")


def convolution(function: Callable[..., object], space: int) -> Builder:
    def build(s: Sizes) -> Case:
        groups = s.size(1, 1, 2, 4)
        inner, outer = groups * s.size(1, 2), groups * s.size(1, 2)
        options = ((1, 2, 3), (1, 2), (0, 1, 2), (1, 2))
        kernel, stride, padding, dilation = ([s.size(*choice) for _ in range(space)] for choice in options)
        x = floats(s.size(1, 2, 4), inner, *(s.size(5, 7, 8, 12) for _ in range(space)))
        bias = floats(outer) if s.flag() else None
        w = floats(outer, inner // groups, *kernel)
        return case(function, x, w, bias, stride, padding, dilation, groups)

    return build


def named_padding(s: Sizes) -> Case:
    kernel, dilation = [s.size(1, 2, 3, 4), s.size(1, 2, 3)], [s.size(1, 2), s.size(1, 2)]
    x = floats(2, 2, s.size(8, 9), s.size(7, 8))
    return case(aten.conv2d.padding, x, floats(4, 2, *kernel), None, [1, 1], s.pick("same", "valid"), dilation)


def transposed_convolution(function: Callable[..., object], space: int) -> Builder:
    def build(s: Sizes) -> Case:
        groups = s.size(1, 1, 2)
        inner, outer = groups * s.size(1, 2), groups * s.size(1, 2)
        options = ((1, 2, 3), (1, 2, 3), (1, 2))
        kernel, stride, dilation = ([s.size(*choice) for _ in range(space)] for choice in options)
        padding = [s.size(0, 1) if size > 1 else 0 for size in kernel]
        beyond = [s.size(0, 1) if max(a, b) > 1 else 0 for a, b in zip(stride, dilation, strict=True)]
        x = floats(2, inner, *(s.size(4, 5, 8) for _ in range(space)))
        bias = floats(outer) if s.flag() else None
        w = floats(inner, outer // groups, *kernel)
        return case(function, x, w, bias, stride, padding, beyond, groups, dilation)

    return build


def grown(s: Sizes) -> Case:
    """Ops that make several rows of one."""
    x, w = floats(2, 4, 1), floats(4, 4, 2)
    return s.pick(
        case(aten.conv_transpose1d.default, x, w),
        case(aten.conv1d.default, x, w, None, [1], [1]),
        case(aten.avg_pool1d.default, x, [2], [1], [1]),
        case(aten.upsample_nearest1d.default, x, [4]),
        case(aten.adaptive_avg_pool1d.default, x, [3]),
    )


def any_convolution(s: Sizes) -> Case:
    transposed, stride, dilation = s.flag(), [s.size(1, 2), 1], [1, s.size(1, 2)]
    groups = s.size(1, 2) if transposed else 2
    x, w = floats(2, 4, s.size(6, 8), 5), floats(4, 3 if transposed else 2, 3, 2)
    return case(aten.convolution.default, x, w, None, stride, [1, 0], dilation, transposed, [0, 0], groups)


def max_pool(s: Sizes) -> Case:
    kernel, stride, padding, dilation = (
        [s.size(2, 3), s.size(1, 2)],
        [s.size(1, 2), 2],
        [s.size(0, 1), 0],
        [s.size(1, 2), 1],
    )
    return case(aten.max_pool2d.default, floats(2, s.size(), 12, 7), kernel, stride, padding, dilation, s.flag())


def average_pool(s: Sizes) -> Case:
    kernel, padding = [s.size(2, 3), s.size(1, 2)], [s.size(0, 1), 0]
    return case(aten.avg_pool2d.default, floats(2, 2, 12, 8), kernel, kernel, padding, s.flag(), s.flag())


def adaptive_pool(s: Sizes) -> Case:
    sizes = [s.size(1, 3, 4, 6), s.size(1, 2, 3, 4)]
    return case(aten.adaptive_avg_pool2d.default, floats(2, 3, 12, 8), sizes)


CASES: dict[str, Builder] = {
    "linear": linear,
    "mm": mm,
    "addmm": addmm,
    "bmm": bmm,
    "baddbmm": baddbmm,
    "matmul": matmul,
    "mv, dot, outer": vectors,
    "einsum": einsum,
    "einsum with dots": einsum_with_dots,
    "attention": attention,
    "attention with dropout": attention_with_dropout,
    "dropout": dropout,
    "conv1d": convolution(aten.conv1d.default, 1),
    "conv2d": convolution(aten.conv2d.default, 2),
    "conv3d": convolution(aten.conv3d.default, 3),
    "conv2d with named padding": named_padding,
    "conv_transpose1d": transposed_convolution(aten.conv_transpose1d.default, 1),
    "conv_transpose2d": transposed_convolution(aten.conv_transpose2d.input, 2),
    "conv_transpose3d": transposed_convolution(aten.conv_transpose3d.input, 3),
    "convolution": any_convolution,
    "one row that grows": grown,
    "max_pool2d": max_pool,
    "avg_pool1d": lambda s: case(aten.avg_pool1d.default, floats(2, 3, 12), [s.size(2, 3)]),
    "avg_pool2d": average_pool,
    "adaptive_avg_pool2d": adaptive_pool,
    "adaptive_max_pool2d": lambda s: case(aten.adaptive_max_pool2d.default, floats(2, 3, 12, 8), [1, s.size(1, 2)]),
    "upsample_nearest2d": lambda s: case(aten.upsample_nearest2d.default, floats(2, 3, 4, 6), [8, s.size(6, 9, 12)]),
    "upsample_nearest_exact2d": lambda s: case(
        aten._upsample_nearest_exact2d.default, floats(2, 3, 4, 6), [s.pick(7, 8), 9]
    ),
    "max_pool1d_with_indices": lambda s: case(aten.max_pool1d_with_indices.default, floats(2, s.size(), 12), [2]),
    "upsample_nearest1d": lambda s: case(
        aten.upsample_nearest1d.vec, floats(2, 3, 4), None, [s.pick(2.0, 2.1, 2.2, 1.75)]
    ),
    "upsample_bilinear2d": lambda s: case(aten.upsample_bilinear2d.default, floats(2, 3, 4, 6), [8, 12], s.flag()),
    "pixel_shuffle": lambda s: case(aten.pixel_shuffle.default, floats(2, 4 * s.size(), 4, 6), 2),
    "pixel_unshuffle": lambda s: case(aten.pixel_unshuffle.default, floats(2, s.size(), 8, 12), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_pieces_put_together_are_the_whole_product(name: str) -> None:
    pieces_agree(CASES[name])
