"""Sums, means and their kin over the rows that are taken: of as many numbers as these have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from placer.tracer.selections.selected import Selected, is_selected, refused

Call = Callable[..., Any]


def over_rows(
    func: Call, name: str, dims: tuple[int, ...] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What `func` gives of a selection, its first argument, over these dims, of which the rows are one (None: all).
    Raises SelectionError where that is not known."""
    over = _OVER_ROWS.get(name)
    if over is None or not is_selected(args[0] if args else None):
        refused(f"{name} over the rows of a selection")
    return over(func, args[0], dims, args, kwargs)


def numbers(one: Selected, dims: tuple[int, ...] | None) -> Tensor:
    """How many numbers of a selection lie along these dims, of which its rows are one; int64, ()."""
    sizes = [one.values.shape[dim] for dim in (range(one.ndim) if dims is None else dims) if dim]
    return one.rows.count * math.prod(sizes) if sizes else one.rows.count


def _sum(func: Call, one: Selected, dims: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(one.rows.kept(one.values, 0), *args[1:], **kwargs)


def _mean(func: Call, one: Selected, dims: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    values, to = one.rows.kept(one.values, 0), kwargs.get("dtype", one.dtype)
    wide = torch.float32 if to in (torch.float16, torch.bfloat16) else to  # in which a mean is taken, and counts fit
    return (torch.sum(values, *args[1:], **{**kwargs, "dtype": wide}) / numbers(one, dims)).to(to)


def _norm(func: Call, one: Selected, dims: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    power = kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else 2))
    if power not in (1, 2, "fro", None):
        refused(f"a norm of power {power} over the rows of a selection")
    return func(one.rows.kept(one.values, 0), *args[1:], **kwargs)


def _spread(func: Call, one: Selected, dims: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The variance, or its root."""
    said = [arg for arg in (*args[1:], *kwargs.values()) if isinstance(arg, bool)]
    if dims is not None or len(args) + len(kwargs) > 1 + len(said) or "keepdim" in kwargs:
        refused("std or var over some dims of a selection")
    count, values = numbers(one, None), one.values
    from_mean = values - one.rows.kept(values, 0).sum() / count
    variance = one.rows.kept(from_mean**2, 0).sum() / (count - int(said[0] if said else True)).clamp(min=0)
    if func.__name__ == "var":
        return variance
    # Where all are equal, no gradient goes through their spread.
    return torch.where(variance > 0, torch.where(variance > 0, variance, 1).sqrt(), variance.detach())


def _extreme(otherwise: float) -> Callable[..., Any]:
    def over(func: Call, one: Selected, dims: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not one.values.is_floating_point() or (dims is not None and func.__name__ in ("max", "min")):
            refused(f"{func.__name__} over the rows of a selection")
        return func(one.rows.kept(one.values, otherwise), *args[1:], **kwargs)

    return over


def _all(func: Call, one: Selected, dims: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(one.rows.kept(one.values, 1), *args[1:], **kwargs)


_OVER_ROWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sum", "any", "count_nonzero"), _sum), "mean": _mean, "all": _all,
    **dict.fromkeys(("norm", "vector_norm"), _norm), **dict.fromkeys(("std", "var"), _spread),
    **dict.fromkeys(("max", "amax"), _extreme(-math.inf)), **dict.fromkeys(("min", "amin"), _extreme(math.inf)),
}  # fmt: skip
