"""What changes the dims of a selection after its first, and leaves its rows as they are, or takes some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from placer.tracer.selections.selected import (
    Rows,
    Same,
    Selected,
    first_of,
    is_selected,
    refused,
    require_alike,
    resting,
    taken,
)

MIXING = "that mixes rows of a selection"
# What leaves places the places, all dims of one size aside.
_SAME = frozenset({"view", "reshape", "flatten", "squeeze", "long", "to", "contiguous", "detach", "clone"})


def reshaped(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`view` or `reshape` of each row, or into numbers one after the other. Raises SelectionError for others."""
    one, sizes = args[0], args[1:] or tuple(kwargs.values())
    sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    if not sizes or not all(isinstance(size, int) or size is one.rows.counted for size in sizes):
        refused(f"{name} to sizes that values say")
    first, *others = sizes
    if not others and first == -1:
        return flat(one)
    each, size = math.prod(one.values.shape[1:]), math.prod(others)
    by_count = not isinstance(first, int)
    if (by_count and (-1 in others or size == each)) or (first == -1 and size == each):
        return Selected(one.values.reshape(one.values.shape[0], *others), one.rows)
    return apart(one, tuple(others), name) if first == -1 and -1 not in others else refused(f"{name} {MIXING}")


def flat(one: Selected) -> Selected:
    """Its numbers one after the other."""
    return apart(one, (), "flatten")


def apart(one: Selected, sizes: tuple[int, ...], name: str) -> Selected:
    """Its numbers one after the other, in rows of these sizes, of which each is of one row. Raises SelectionError."""
    rows, times = one.rows.within
    many, over = divmod(times * math.prod(one.values.shape[1:]), math.prod(sizes) or 1)
    if over or not many:
        refused(f"{name} {MIXING}")
    return Selected(one.values.reshape(-1, *sizes), one.rows if many == times else rows.each(many))


def flattened(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`flatten` from the first dim to the last, or of dims after the first."""
    one = args[0]
    start, end = (
        kwargs.get(key, args[at] if len(args) > at else otherwise) % one.ndim
        for at, key, otherwise in ((1, "start_dim", 0), (2, "end_dim", -1))
    )
    if start == 0 and end == one.ndim - 1:
        return flat(one)
    return Selected(one.values.flatten(start, end), one.rows) if start else refused("flatten of some of its dims")


def with_dim(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`unsqueeze` or `squeeze` after the first dim."""
    dim, one = kwargs.get("dim", args[1] if len(args) > 1 else None), args[0]
    if not isinstance(dim, int) or dim % (one.ndim + (name == "unsqueeze")) == 0:
        refused(f"{name} of its rows")
    return Selected(func(one.values, dim), one.rows)


def padded(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`pad` of dims after the first, by one number."""
    one, (pads, *others) = args[0], (*args[1:], *kwargs.values())
    mode = kwargs.get("mode", others[0] if others else "constant")
    if not is_selected(one) or mode != "constant" or len(pads) > 2 * (one.ndim - 1):
        refused("pad of its rows, or by what lies there")
    return Selected(func(one.values, *args[1:], **kwargs), one.rows)


def turned(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`transpose` of two dims after the first, or `permute` that leaves the first in its place."""
    one, dims = args[0], args[1:] or tuple(kwargs.values())
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    counted = [dim % one.ndim for dim in dims]
    if (0 in counted) if name != "permute" else counted[0] != 0:
        refused(f"{name} of its rows")
    return Selected(func(one.values, *counted), one.rows)


def joined(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`cat` of selections one after the other, or `cat` and `stack` of the same rows' numbers."""
    tensors, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
    one = first_of(tensors)
    if not all(map(is_selected, tensors)):
        refused(f"{name} of a selection and of what is none")
    if dim % (one.ndim + (name == "stack")):
        require_alike(one, tensors)
        return Selected(func([each.values for each in tensors], dim), one.rows)
    if name == "stack" or any(each.ndim != one.ndim for each in tensors):
        refused(f"{name} of selections")
    name_of_all = ("cat", *(each.rows.name for each in tensors))
    rows = Rows(torch.cat([each.rows.mask for each in tensors]), name_of_all, one.rows.answer)
    return Selected(torch.cat([each.values for each in tensors]), rows)


def indexed(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Of each row what plain indices behind a whole slice take; of the rows those that a mask of them takes; of a table
    the entries whose numbers are selected."""
    one, index = args
    if not is_selected(one):
        return of_table(one, index)
    if is_selected(index) and index.dtype == torch.bool and index.ndim == 1:
        return _fewer(one, index)
    index = index if isinstance(index, tuple) else (index,)
    if not _is_behind(one, index):
        refused("some of its rows")
    return Selected(one.values[index], one.rows)


def _is_behind(one: Selected, index: tuple[Any, ...]) -> bool:
    """Whether indices are plain, and take all rows."""
    plain = all(at is None or at is Ellipsis or isinstance(at, int | slice) for at in index)
    behind = index[0] is Ellipsis and sum(at is not None for at in index) <= one.ndim
    return plain and (_is_whole(index[0]) or behind)


def set_in(one: Any, index: Any, given: Any) -> Selected:
    """The selection with what is given at plain indices behind its rows, a number or of the same rows. Raises
    SelectionError for others."""
    index = index if isinstance(index, tuple) else (index,)
    if not is_selected(one) or not _is_behind(one, index) or None in index:
        refused("a write to some of its rows")
    if is_selected(given) and (given.rows.name != one.rows.name or given.ndim != one.values[index].ndim):
        refused("a write of other rows")
    if isinstance(given, Tensor) and given.ndim >= one.values[index].ndim:
        refused("a tensor of rows written to a selection")
    values = one.values.clone()
    values[index] = given.values if is_selected(given) else given
    return Selected(values, one.rows)


def of_table(table: Tensor, index: Any) -> Selected:
    """Of a table what a mask takes whose places these are, or the entries whose numbers are selected."""
    places = index if isinstance(index, tuple) else (index,)
    rows = places_of(places)
    if rows is not None and tuple(table.shape[: len(rows.shape)]) == rows.shape:
        return taken(table, rows)
    if not is_selected(index) or index.places or index.dtype != torch.int64:
        refused("a tensor at places that a selection says")
    return Selected(table[index.rows.kept(index.values, 0)], index.rows)


def places_of(index: tuple[Any, ...]) -> Rows | None:
    """The rows of a mask, of whose every dim, in order, these are the places; None where they are not."""
    if not all(is_selected(one) and one.ndim == 1 for one in index):
        return None
    rows = index[0].rows
    alike = all(one.rows.name == rows.name for one in index)
    return rows if alike and [one.places for one in index] == [(dim,) for dim in range(len(rows.shape))] else None


def index_selected(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`index_select` of the rows of a table at selected places, or of each row at plain ones."""
    table, dim, index = (*args, *kwargs.values())[:3]
    if is_selected(index) and not is_selected(table) and dim == 0:
        return of_table(table, index)
    if is_selected(index) or not is_selected(table) or dim % table.ndim == 0:
        refused("index_select over the rows of a selection")
    return Selected(func(table.values, dim, index), table.rows)


def places(rows: Rows) -> tuple[Selected, ...]:
    """The places of what a mask takes, along each of its dims: int64, (n,) each."""
    found = []
    for dim, size in enumerate(rows.shape):
        along = torch.arange(size, device=rows.mask.device).view(-1, *(1,) * (len(rows.shape) - dim - 1))
        found.append(taken(along.expand(rows.shape), rows))
        found[-1].places = (dim,)
    return tuple(found)


def still_places(name: str, args: tuple[Any, ...], result: Any) -> None:
    """Notes of what a function made of places that they are the places still."""
    was = args[0].places if args and is_selected(args[0]) else ()
    if not was or not is_selected(result) or result.rows is not args[0].rows:
        return
    if name == "getitem" and args[0].ndim == 2 and result.ndim == 1 and isinstance(args[1], tuple):
        result.places = (was[args[1][-1]],)
    elif name in _SAME and (result.ndim == args[0].ndim or len(was) == 1):
        result.places = was


def _is_whole(at: Any) -> bool:
    return isinstance(at, slice) and at == slice(None)


def _fewer(one: Selected, mask: Selected) -> Selected:
    """Of its rows those that a mask of them takes."""
    if mask.rows.name != one.rows.name:
        refused("a selection by a mask of which it is not known that it is of the same rows")
    rows = Rows(one.rows.mask & mask.values, (one.rows.name, Same(mask.values)), one.rows.answer)
    return Selected(rows.kept(one.values, resting(one.values)), rows)
