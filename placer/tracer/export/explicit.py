"""Ops that look at the sizes or the memory of what they are given, told what they saw in the whole batch.

    squeeze()                      the dims that have one entry: those of the whole, as a piece of more may have one too
    as_strided(x, ...)             of values that lie in the order of their dims, and are laid so before
    repeat_interleave(x, 2, ...)   without the size of the result, which is there to spare a device that counts
    fill_diagonal_(x, 0)           a write into the diagonal of a matrix, which has a form that does not write
    tile(x, 2)                     `repeat` along each of its dims
    take_along_dim(x, index, dim)  `gather`, where the other dims have the same sizes in both
    expand_as(x, y), view_as, ...  to the sizes of y, whose numbers say nothing of the result
    norm(x) ** 2                   the sum of squares, to which each row adds its own
    cat(list(x))                   two dims made one, whatever number of them there is

In: nodes of an export, with what they were given (`meta["val"]`). The plain graph has other calls in their place.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.fx.node import Argument

from placer.errors import UncapturableError

aten = torch.ops.aten

_OF_ANOTHER = {
    aten.expand_as.default: aten.expand.default, aten.view_as.default: aten.view.default,
    aten.reshape_as.default: aten.reshape.default,
}  # fmt: skip
_SQUEEZES = {
    aten.squeeze.default: aten.squeeze.dims, aten.squeeze.dim: aten.squeeze.dims, aten.squeeze.dims: aten.squeeze.dims,
    aten.squeeze_.default: aten.squeeze_.dims, aten.squeeze_.dim: aten.squeeze_.dims,
    aten.squeeze_.dims: aten.squeeze_.dims,
}  # fmt: skip


def squeezed_dims(node: fx.Node) -> tuple[int, ...] | None:
    """The dims of one entry that a squeeze leaves out; None for what is no squeeze."""
    if node.target not in _SQUEEZES:
        return None
    shape = _given(node).shape
    asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", tuple(range(len(shape))))
    dims = asked if isinstance(asked, (tuple, list)) else (asked,)
    alone = {int(dim) % len(shape) for dim in dims if type(shape[int(dim)]) is int and shape[int(dim)] == 1}
    return tuple(sorted(alone)) if shape else ()


def squeeze_of(node: fx.Node) -> torch._ops.OpOverload:
    """The squeeze that is told its dims."""
    return _SQUEEZES[node.target]  # type: ignore[index]


def keywords(node: fx.Node) -> dict[str, Argument]:
    """The keywords of a call, without a size that it needs not be told."""
    counted = node.target is aten.repeat_interleave.self_int
    return {name: one for name, one in node.kwargs.items() if not (counted and name == "output_size")}


def filled_diagonal(node: fx.Node) -> Argument | None:
    """What a call writes into the diagonal of a matrix; None for others, and where it goes on below a square."""
    if node.target is not aten.fill_diagonal_.default or _given(node).dim() != 2:
        return None
    wraps = node.args[2] if len(node.args) > 2 else node.kwargs.get("wrap", False)
    return None if wraps else node.args[1] if len(node.args) > 1 else node.kwargs["fill_value"]


def repeats(node: fx.Node) -> tuple[int, ...] | None:
    """How often a tile repeats its argument along each dim; None for what is no tile."""
    if node.target is not aten.tile.default:
        return None
    asked = node.args[1] if len(node.args) > 1 else node.kwargs["dims"]
    assert isinstance(asked, (tuple, list))
    times = tuple(int(one) for one in asked)
    return (1,) * (_given(node).dim() - len(times)) + times


def sized(node: fx.Node) -> tuple[torch._ops.OpOverload, list[int]] | None:
    """The op with sizes in place of a tensor that has them, and the sizes; None for others.

    Of labels it gives labels then, also beside scores: what they count does not hang on weights.
    """
    target = _OF_ANOTHER.get(node.target)  # type: ignore[call-overload]
    other = node.args[1] if target is not None and len(node.args) > 1 else node.kwargs.get("other")
    return (target, list(other.meta["val"].shape)) if target is not None and isinstance(other, fx.Node) else None


def squared_norm(node: fx.Node) -> fx.Node | None:
    """Of what a node gives the square of the norm of all numbers; None for others, weights alone and 16 bits."""
    inner = node.args[0] if node.args else None
    twice = node.target is aten.mul.Tensor and node.args[1:] == (inner,)
    square = node.target is aten.pow.Tensor_Scalar and node.args[1:] == (2,)
    if not isinstance(inner, fx.Node) or not (twice or square or node.target is aten.square.default):
        return None
    order = inner.args[1] if len(inner.args) > 1 else inner.kwargs.get("ord", 2)
    whole = inner.target is aten.linalg_vector_norm.default and order == 2 and len(inner.args) < 3
    if not whole or inner.kwargs.keys() - {"ord"}:
        return None
    value = _given(inner)
    plain = value.dtype in (torch.float32, torch.float64) and inner.all_input_nodes[0].op == "call_function"
    return inner.all_input_nodes[0] if plain else None


def gathered_dim(node: fx.Node) -> int | None:
    """The dim of a `take_along_dim` that takes what a `gather` would; None for others, and where dims are repeated."""
    if node.target is not aten.take_along_dim.default:
        return None
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
    index = node.args[1]
    if not isinstance(dim, int) or not isinstance(index, fx.Node):
        return None
    given, taken = list(_given(node).shape), list(index.meta["val"].shape)
    given[dim] = taken[dim] if len(given) == len(taken) else given[dim]
    return dim if given == taken else None


def rejoined(node: fx.Node) -> tuple[fx.Node, int] | None:
    """What a cat joins again that was taken apart along the same dim, all of it in order, and the dim; else None."""
    parts = node.args[0] if node.target is aten.cat.default else None
    first = parts[0] if isinstance(parts, (tuple, list)) and parts else None
    apart = first.args[0] if isinstance(first, fx.Node) and first.target is operator.getitem else None
    if not isinstance(parts, (tuple, list)) or not isinstance(apart, fx.Node) or apart.target is not aten.unbind.int:
        return None
    shape, whole = _given(apart).shape, apart.args[0]
    dim, along = ((one.args[1] if len(one.args) > 1 else one.kwargs.get("dim", 0)) for one in (apart, node))
    if not isinstance(dim, int) or not isinstance(along, int) or len(shape) < 2 or not isinstance(whole, fx.Node):
        return None
    dim %= len(shape)
    taken = [(one.target, *one.args) for one in parts if isinstance(one, fx.Node)]
    all_of_it = taken == [(operator.getitem, apart, at) for at in range(shape[dim])] and len(taken) == len(parts)
    all_of_it &= node.meta["val"].is_contiguous()
    return (whole, dim) if all_of_it and along % (len(shape) - 1) == dim else None


def must_lie_in_order(node: fx.Node, where: str) -> bool:
    """Whether an op reads its first argument by where it lies in memory. Raises UncapturableError where that is not in
    the order of its dims, or beside other numbers."""
    if node.target not in (aten.as_strided.default, aten.as_strided_.default):
        return False
    value = _given(node)
    alone = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    if not value.is_contiguous() or not alone:
        raise UncapturableError(
            f"as_strided at {where} reads a value by where it lies in memory, and that is a view of another, or in "
            "another order than that of its dims: devices may lay it otherwise; write .contiguous().clone() before it"
        )
    return True


def _given(node: fx.Node) -> torch.Tensor:
    first = node.args[0]
    assert isinstance(first, fx.Node)
    found: torch.Tensor = first.meta["val"]
    return found
