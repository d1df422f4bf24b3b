"""What a value becomes when a view of it is written: for each kind of view the call that puts the new part back.

slice, select, diagonal          slice_scatter, select_scatter, diagonal_scatter
a piece of split, chunk, unbind  slice_scatter, select_scatter at the piece's place
permutations of dims             the inverse permutation
views of all elements in order   reshape to the shape of what was viewed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.node import Argument

from placer.tracer.export.cleaning import target_name

aten = torch.ops.aten

# Views of all elements in their order.
_IN_ORDER = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as",
    "contiguous", "alias", "detach", "to", "type_as", "expand", "expand_as", "broadcast_to", "lift_fresh",
    "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",  # where they drop nothing
})  # fmt: skip
_SAME_DIMS = frozenset({"transpose", "swapaxes", "swapdims"})
_TURNED = frozenset({"t", "mT", "numpy_T", "adjoint"})
_PIECES = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split"})


class NoInverseError(Exception):
    """A view through which placer cannot write."""


@dataclass(frozen=True, slots=True)
class Views:
    """What the nodes of a graph took, as it was before any was changed, and the tensors they gave, on meta."""

    args: Mapping[fx.Node, tuple[Argument, ...]]
    kwargs: Mapping[fx.Node, Mapping[str, Argument]]
    tensors: Mapping[fx.Node, tuple[torch.Tensor, ...]]

    def viewed(self, view: fx.Node) -> fx.Node:
        """The tensor that `view` is a view of; for a piece of a split, what was split."""
        first = self.args[view][0]
        if target_name(view) == "builtin::getitem" and isinstance(first, fx.Node):
            whole = self.args[first][0]
            first = whole[self.args[view][1]] if isinstance(whole, (tuple, list)) else whole  # type: ignore[index]
        if not isinstance(first, fx.Node):
            raise NoInverseError(target_name(view))
        return first

    def option(self, node: fx.Node, at: int, name: str, default: Argument) -> Argument:
        """An argument of `node` by place or name."""
        return self.args[node][at] if len(self.args[node]) > at else self.kwargs[node].get(name, default)


def put_back(graph: fx.Graph, view: fx.Node, whole: fx.Node, part: fx.Node, views: Views) -> fx.Node:
    """`whole`, of which `view` is a view, with `part` in the view's place. Raises NoInverseError."""
    found, like = _put_back(graph, view, whole, part, views), views.tensors[views.viewed(view)][0]
    if found.target in (aten.slice_scatter.default, aten.select_scatter.default) and like.is_complex():
        return _of_real_parts(graph, found, like.dim())
    return found


def _of_real_parts(graph: fx.Graph, scatter: fx.Node, rank: int) -> fx.Node:
    """A `slice_scatter` or `select_scatter` of complex numbers, which has no gradient there, as one of their real and
    imaginary parts. rank: the dims of the whole."""
    whole, part, *rest = scatter.args
    assert isinstance(scatter.target, torch._ops.OpOverload)
    target = scatter.target
    options = dict(scatter.kwargs)
    dim = rest.pop(0) if rest else options.pop("dim", 0)
    assert isinstance(dim, int)
    graph.erase_node(scatter)
    plain = [graph.call_function(aten.resolve_conj.default, (one,)) for one in (whole, part)]
    real = [graph.call_function(aten.view_as_real.default, (one,)) for one in plain]
    put = graph.call_function(target, (*real, dim % rank, *rest), options)
    return graph.call_function(aten.view_as_complex.default, (put,))


def _put_back(graph: fx.Graph, view: fx.Node, whole: fx.Node, part: fx.Node, views: Views) -> fx.Node:
    name = target_name(view).rpartition("::")[2]
    if name == "getitem":
        return _piece_put_back(graph, view, whole, part, views)
    rest, kwargs, shape = views.args[view][1:], dict(views.kwargs[view]), views.tensors[views.viewed(view)][0].shape
    if name in ("slice", "select", "diagonal"):
        return graph.call_function(getattr(aten, f"{name}_scatter").default, (whole, part, *rest), kwargs)
    if name == "narrow":
        dim, start, length = rest
        if isinstance(start, int) and isinstance(length, int):
            return graph.call_function(aten.slice_scatter.default, (whole, part, dim, start, start + length))
    if name in _SAME_DIMS:
        return graph.call_function(aten.transpose.int, (part, *rest))
    if name in _TURNED:
        return graph.call_function(view.target, (part,))  # type: ignore[arg-type]  # a call's target is callable
    if name in ("permute", "movedim", "moveaxis"):
        return graph.call_function(aten.permute.default, (part, _back(view, rest, len(shape))))
    if name in _IN_ORDER and shape.numel() == views.tensors[view][0].numel():
        return graph.call_function(aten.reshape.default, (part, list(shape)))
    raise NoInverseError(target_name(view))


def _back(view: fx.Node, rest: tuple[Argument, ...], dims: int) -> list[Argument]:
    """The permutation that undoes one."""
    # What the view does to a tensor whose sizes are the numbers of its dims.
    places = torch.empty(tuple(range(1, dims + 1)), device="meta")
    assert isinstance(view.target, torch._ops.OpOverload)
    order = [size - 1 for size in view.target(places, *rest).shape]
    return [order.index(dim) for dim in range(dims)]


def _piece_put_back(graph: fx.Graph, view: fx.Node, whole: fx.Node, part: fx.Node, views: Views) -> fx.Node:
    """`view` takes one of the pieces of a split of `whole`."""
    split, index = views.args[view]
    assert isinstance(split, fx.Node) and isinstance(index, int)
    name = target_name(split).rpartition("::")[2]
    if name == "broadcast_tensors" and views.tensors[views.viewed(view)][0].shape == views.tensors[view][0].shape:
        return part
    if name == "unbind":
        dim = views.option(split, 1, "dim", 0)
        return graph.call_function(aten.select_scatter.default, (whole, part, dim, index))
    if name not in _PIECES:
        raise NoInverseError(target_name(split))
    dim = views.option(split, 2, "dim", 0)
    assert isinstance(dim, int)
    start = sum(piece.shape[dim] for piece in views.tensors[split][:index])
    end = start + views.tensors[split][index].shape[dim]
    return graph.call_function(aten.slice_scatter.default, (whole, part, dim, start, end))
