"""What functions give of selections, by name; what is not known of selections is refused."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from placer.tracer.selections import reductions, rowwise, shapes
from placer.tracer.selections.losses import LOSSES, OF_CLASSES, loss, loss_of_classes
from placer.tracer.selections.selected import Count, Selected, is_selected, plain_name, refused


def _reduced(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a function that goes over dims gives of a selection: over its rows, too, where that is known."""
    if name in ("max", "min") and len(args) > 1 and isinstance(args[1], Tensor | Selected):
        return rowwise.rowwise(func, f"{name}imum", args, kwargs)
    dims = rowwise.dims_of(name, args, kwargs)
    over = dims is None or 0 in dims
    return reductions.over_rows(func, name, dims, args, kwargs) if over else rowwise.rowwise(func, name, args, kwargs)


SHAPES: dict[str, Callable[..., Any]] = {
    "view": shapes.reshaped, "reshape": shapes.reshaped, "flatten": shapes.flattened, "unsqueeze": shapes.with_dim,
    "squeeze": shapes.with_dim, "transpose": shapes.turned, "permute": shapes.turned, "movedim": shapes.turned,
    "cat": shapes.joined, "concat": shapes.joined, "concatenate": shapes.joined, "stack": shapes.joined,
    "getitem": shapes.indexed, "index_select": shapes.index_selected, "matmul": rowwise.matmul, "mm": rowwise.matmul,
    "pad": shapes.padded,
}  # fmt: skip
TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(rowwise.ELEMENTWISE, rowwise.rowwise), **dict.fromkeys(rowwise.OVER, _reduced),
    **dict.fromkeys(rowwise.WEIGHTED, rowwise.weighted), **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys(OF_CLASSES, loss_of_classes), **SHAPES,
}  # fmt: skip
IN_PLACE = {"__iadd__": "add", "__isub__": "sub", "__imul__": "mul", "__itruediv__": "div"}
# What may give a view of what it is given: what is written into one is in the other.
_VIEWS = """view reshape flatten unsqueeze squeeze transpose permute movedim getitem detach contiguous to float
double half bfloat16 long int bool type select narrow chunk split unbind positive dropout"""
VIEWS = frozenset(_VIEWS.split())


def answered(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a function gives of selections. Raises SelectionError where that is not known."""
    kwargs = {"dim" if key == "axis" else key: one for key, one in kwargs.items() if key != "out" or one is not None}
    name, out_of_place = plain_name(func), _out_of_place(func, args, kwargs)
    if out_of_place is not None:
        return _replaced(args[0] if args else kwargs["input"], answered(*out_of_place))
    if name == "setitem":
        return _set(*args)
    if name == "where" and len(args) < 3:
        refused("where() of one argument")
    result = TABLE[name](func, name, args, kwargs) if name in TABLE else _asked(name, args, kwargs)
    shapes.still_places(name, args, result)
    if name in VIEWS:
        _note_views(name, args, kwargs, result)
    return result


def _note_views(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    """That all of these may hold the same memory, and whether one alone has what another is given a part of."""
    _forget(args[0])
    held = [one for one in torch.utils._pytree.tree_leaves((args, dict(kwargs), result)) if is_selected(one)]
    alone = name == "getitem" and [*map(id, held)] == [id(args[0]), id(result)] and not args[0].viewed
    for one in held:
        one.viewed = True
        one.part = one.whole.part = None
    if alone:
        result.whole, args[0].part = args[0], (weakref.ref(result), args[1])


def _set(one: Any, index: Any, given: Any) -> None:
    """`one[index] = given`, also as the end of `one[index] += number`, which is written by then."""
    if not (is_selected(one) and one.part is not None and one.part[0]() is given and one.part[1] == index):
        _forget(one)
        _replaced(one, shapes.set_in(one, index, given))


def _forget(one: Any) -> None:
    """A part that nobody holds any more."""
    if is_selected(one) and one.part is not None and one.part[0]() is None:
        one.viewed, one.part = False, None


def _out_of_place(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]] | None:
    """The call that gives what this one writes into its first argument; None for one that writes nothing."""
    name = getattr(func, "__name__", "")
    if kwargs.get("out") is not None:
        refused("out=")
    if name in IN_PLACE:
        return getattr(Tensor, IN_PLACE[name]), args, kwargs
    if name.endswith("_") and not name.endswith("__"):
        return getattr(torch, name[:-1], None) or getattr(Tensor, name[:-1]), args, kwargs
    if "inplace" not in getattr(getattr(func, "__code__", None), "co_varnames", ()):
        return None
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    return (func, (), {**given, "inplace": False}) if given.get("inplace") else None


def _replaced(one: Selected, result: Any) -> Selected:
    """The selection, holding the result from now on."""
    if not is_selected(one) or not is_selected(result) or result.dtype != one.dtype:
        refused("a write into a selection of another type")
    whole = one.whole
    if one.viewed and (whole.part is None or whole.part[0]() is not one):
        refused("a write into a selection of which there are views")
    if result.rows is not one.rows or result.values.shape != one.values.shape:
        refused("a write into a selection of other rows")
    one.values, one.places = result.values, ()
    if one.viewed and whole.part is not None:
        whole.values, whole.places = shapes.set_in(whole, whole.part[1], one).values, ()
    return one


def _asked(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Its sizes and kind, and dropout that drops nothing."""
    one: Any = args[0] if args else None
    others = (*args[1:], *kwargs.values())
    if not is_selected(one):
        refused(name)
    if name in ("dim", "ndimension"):
        return one.ndim
    if name in ("is_floating_point", "is_complex"):
        return getattr(one.values, name)()
    if name == "size":
        return one.shape[others[0]] if others else one.shape
    if name in ("numel", "nelement"):
        return Count(reductions.numbers(one, None))
    if name == "dropout":
        rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", args[2] if len(args) > 2 else True)
        if not (training and rate):
            return one
    refused(name)
