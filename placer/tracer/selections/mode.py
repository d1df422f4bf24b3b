"""While a model is exported, what its masks select are selections, which know what sums, means and losses are of them.

h[mask]; masked_select(h, mask)     Selected
h[mask] = a selection of the rows   those rows written
labels != -100, twice               two masks that take the same rows: made of the same by the same functions
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils.weak import WeakIdKeyDictionary

from placer.tracer.selections.products import Products
from placer.tracer.selections.selected import (
    Answer,
    Rows,
    Selected,
    SelectionError,
    is_selected,
    plain_name,
    refused,
    require_unasked,
    taken,
)
from placer.tracer.selections.shapes import places
from placer.tracer.selections.written import is_mask, where_taken, written

# Selections of a forward: of more, which loops make, a graph is not made.
MOST = 128
# What selects, or says where.
SELECTING = frozenset({"getitem", "masked_select", "nonzero", "argwhere", "where"})
# What makes the same of the same, and no number of floating type.
_SAME = """eq ne lt le gt ge not_equal greater less logical_and logical_or logical_not logical_xor bitwise_and
bitwise_or bitwise_not and or xor invert bool view reshape flatten unsqueeze squeeze contiguous long int
isfinite isnan isinf getitem remainder mod any all sum"""
SAME = frozenset(_SAME.split())
# What makes the same of tensors that hold the same, whatever says how large.
EXPANDING = frozenset({"expand", "expand_as", "broadcast_to"})
WIDENING = frozenset({*EXPANDING, "unsqueeze", "getitem"})


class Selections(TorchFunctionMode):
    """While it is entered, what masks take of tensors is `Selected`, of which `answer` says what functions give."""

    def __init__(self, products: Products, answer: Answer) -> None:
        super().__init__()
        self._names, self._narrow = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._products, self._answer, self._count = products, answer, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, or selects."""
        name, named = plain_name(func), dict(kwargs or {})
        if name == "getitem" and any(map(is_selected, _pytree.tree_leaves(args))):
            return self._answered(func, args, named)  # torch would ask an index for its length
        made = self._made(name, args, named) if name in SELECTING else None
        if made is not None:
            return made
        if name == "setitem" and not is_selected(args[0]) and any(map(is_selected, _pytree.tree_leaves(args[1:]))):
            return written(args[0], args[1], args[2], self._name)
        if name == "masked_scatter" and is_selected(args[2]) and args[0].shape == args[1].shape:
            return where_taken(args[0], args[1], args[2], self._name)
        result = func(*args, **named)
        if name in SAME and isinstance(result, Tensor) and not result.is_floating_point():
            self._names[result] = (name, self._name(args), self._name(sorted(named.items()))), result._version
        if name in EXPANDING and isinstance(result, Tensor) and args:
            self._names[result] = _expanded(self._name(args[0]), result), result._version
        if name in WIDENING and isinstance(result, Tensor) and args and is_mask(args[0]):
            self._widened(result, args[0], _dims_behind(name, args, result))
        return result

    def _name(self, one: Any) -> Hashable:
        """Equal for tensors that hold the same, and for other arguments that are equal."""
        if isinstance(one, tuple | list):
            return tuple(map(self._name, one))
        if not isinstance(one, Tensor):
            plain = type(one) in (int, float, bool, slice, torch.dtype, type(None))
            return repr(one) if plain else object()
        name: Hashable
        name, version = self._names.get(one, (None, None))  # type: ignore[no-untyped-call]  # torch does not type it
        if version != one._version:
            name, version = object(), one._version
            self._names[one] = name, version
        return name

    def _widened(self, made: Tensor, mask: Tensor, behind: bool) -> None:
        """Notes of what was made of a mask by more dims behind its own (`behind`) which mask that is."""
        narrow, version = self._narrow.get(mask, (None, None))  # type: ignore[no-untyped-call]
        if narrow is None or version != mask._version:
            narrow = (self._name(mask), tuple(mask.shape))
        if behind and tuple(made.shape[: len(narrow[1])]) == narrow[1]:
            self._narrow[made] = narrow, made._version

    def _answered(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._products.require(plain_name(func))
        require_unasked("type")
        try:
            return self._answer(func, args, kwargs)
        except SelectionError:
            raise
        except Exception as error:
            return refused(f"{plain_name(func)} ({type(error).__name__})")

    def _made(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a mask takes of a table, or the places of it; None where there is no mask, or it is a selection."""
        given = (*args, *named.values())
        self._count += any(map(is_mask, given))
        if self._count > MOST:
            refused(f"one of more than {MOST} selections")
        if any(map(is_mask, given)):
            require_unasked("type")
        if any(map(is_selected, _pytree.tree_leaves(given))):
            return None
        if name in ("getitem", "masked_select"):
            return self._selected(*given, name) if len(given) == 2 else None
        mask, as_tuple = given[0], name == "where" or named.get("as_tuple", False)
        if not is_mask(mask) or len(given) > 1 + ("as_tuple" in named):
            return None
        found = places(Rows(mask.clone(), (self._name(mask), tuple(mask.shape)), self._answered))
        if as_tuple:
            return found
        one = Selected(torch.stack([each.values for each in found], -1), found[0].rows)
        one.places = tuple(range(len(found)))
        return one

    def _selected(self, table: Tensor, mask: Any, name: str) -> Any:
        """What a mask takes of a table; None where it is no mask."""
        mask, *rest = mask if isinstance(mask, tuple) and mask and name == "getitem" else (mask,)
        if not is_mask(mask) or table.is_complex() or any(isinstance(one, Tensor) for one in rest):
            return None
        same = self._name(mask)
        if name == "masked_select":
            narrow = mask
            table, mask = torch.broadcast_tensors(table, mask)  # type: ignore[no-untyped-call]  # torch does not type it
            if narrow.shape != mask.shape:
                same = _expanded(same, mask)
                self._widened(mask, narrow, narrow.ndim == mask.ndim)
        if table.shape[: mask.ndim] != mask.shape:
            return None
        one = taken(table, self._rows(mask, (same, tuple(mask.shape))))
        return self._answer(Tensor.__getitem__, (one, (slice(None), *rest)), {}) if rest else one

    def _rows(self, mask: Tensor, name: Hashable) -> Rows:
        """What a mask takes; in dims over which it was expanded it takes all or none, which are of one row then."""
        dims = range(mask.ndim, 1, -1)
        deep = next((dim for dim in dims if mask.stride(dim - 1) or mask.shape[dim - 1] == 1), 1)
        if deep == mask.ndim:
            return Rows(mask.clone(), name, self._answered)
        told = mask[(slice(None),) * deep + (0,) * (mask.ndim - deep)]
        narrow, version = self._narrow.get(mask, (None, None))  # type: ignore[no-untyped-call]
        known = narrow is not None and narrow[1] == tuple(told.shape) and version == mask._version
        apart = Rows(told.clone(), narrow if known else ("expanded", name), self._answered)
        return Rows(mask.clone(), name, self._answered, (apart, math.prod(mask.shape[deep:])))


def _expanded(name: Hashable, made: Tensor) -> Hashable:
    return "expand", name, tuple(made.shape)


def _dims_behind(name: str, args: tuple[Any, ...], result: Tensor) -> bool:
    """Whether nothing was done to a mask but that dims came behind its own, or grew from one."""
    if name == "unsqueeze":
        return args[1:] in ((-1,), (args[0].ndim,))
    if name == "getitem":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        whole = [one is Ellipsis or (isinstance(one, slice) and one == slice(None)) for one in index[:-1]]
        return all(whole) and index[-1] is None and result.ndim == int(args[0].ndim) + 1
    return result.ndim == int(args[0].ndim)
