"""Python's functions of numbers, and torch's that make tensors of them, of numbers that are read of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from placer.tracer.lookups.read_numbers import Kind, Read, kind_of, numbers_of, of_type, require_uncaught
from placer.tracer.lookups.readings import Readings, is_read

# Of one number, as Python's `math` has them.
_OF_MATH = ("exp", "log", "sqrt", "log2", "log10", "log1p", "expm1", "tanh", "isnan", "isinf", "isfinite", "fabs")


def made_of(
    readings: Readings, numbers: Any, dtype: torch.dtype | None = None, device: Any = None, **more: Any
) -> Tensor:
    """`torch.tensor(numbers)`, of lists in which some are `Read`."""
    leaves = _pytree.tree_leaves(numbers)
    kinds = {kind_of(one) for one in leaves}
    if more or not kinds <= {bool, int, float} or any(is_read(one) and one._number is None for one in leaves):
        readings.refuse("enters a tensor with what is not known")
    kind = torch.get_default_dtype() if float in kinds else torch.int64 if int in kinds else torch.bool
    return _stacked(numbers, dtype or kind).to(device)


def _stacked(numbers: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(numbers, list | tuple):
        return torch.stack([_stacked(one, dtype) for one in numbers])
    number = numbers._number if type(numbers) is Read else None
    return torch.full((), numbers, dtype=dtype) if number is None else number.to(dtype, copy=True)


def converted(one: Read, kind: Kind) -> Read:
    """`float(one)`, `int(one)`."""
    number = one._number
    if kind is int and one._kind is float:
        require_uncaught(one)
        number = None if number is None or not one._fresh else number.trunc()
    to = torch.float64 if kind is float else torch.int64
    return Read(None if number is None else of_type(number, to), kind, one._readings, fresh=one._fresh)


def larger(one: Any, other: Any, sign: int) -> Any:
    """`max(one, other)`, or `min` by a sign of -1, of which one is `Read`: the first of equal ones, as in Python."""
    readings = (one if type(one) is Read else other)._readings
    kinds = {kind_of(one), kind_of(other)}
    if len(kinds) > 1 or not kinds <= {int, float}:
        readings.refuse("is compared with a number of another kind")
    kind: Kind = float if float in kinds else int
    first, second = numbers_of((one, other), kind)
    if first is None or second is None:
        return Read(None, kind, readings)
    found = torch.where(second > first if sign > 0 else second < first, second, first)
    fresh = all(type(each) is not Read or each._fresh for each in (one, other))
    return Read(found, kind, readings, fresh=fresh)


def of_math(name: str, before: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python's `math` that knows what was read."""

    def function(*given: Any) -> Any:
        if len(given) != 1 or type(given[0]) is not Read:
            return before(*given)
        one = given[0]
        kind: Kind = bool if name.startswith("is") else float
        if kind is float:
            require_uncaught(one)
        found = None
        if one._number is not None:
            found = getattr(torch, "abs" if name == "fabs" else name)(of_type(one._number, torch.float64))
        return Read(found, kind, one._readings)

    return function


OF_MATH = {name: of_math(name, getattr(math, name)) for name in _OF_MATH}
