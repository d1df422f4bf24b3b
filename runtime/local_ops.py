"""What a rank runs for an op that is cut along an axis: `run_local` takes the op `localise` gave and the rank's pieces.

The pieces are as the choice's states say, windows with the rows of their neighbours already in them. Collectives within
an op go through `Axis`; each is differentiable in the way its op needs:

    total(x)   sum over ranks; every rank then does the same with it, so its gradient is already whole
    spread(x)  sum over ranks; every rank goes on with its own piece, so gradients are summed as well
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from placer.errors import UsageError
from placer.rules import Argument, Call
from placer.rules.layouts import LocalOp

aten = torch.ops.aten
Function = Callable[..., Any]


class Axis(Protocol):
    """The ranks along one mesh axis."""

    degree: int
    rank: int

    def all_reduce(self, tensor: torch.Tensor, reduce: str) -> torch.Tensor:
        """The sum or maximum (`"sum"`, `"max"`) of the ranks' tensors, as a new tensor without history."""
        ...


def run_local(
    local: Call | LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """The rank's result. `args` and `kwargs` are the whole op's, its tensors replaced by the rank's pieces."""
    call = local.call if isinstance(local, LocalOp) else local
    merged = tuple(_merged(one, told) for one, told in zip(args, call.arguments, strict=True))
    told = dict(call.keywords)
    named = {name: _merged(one, told[name]) for name, one in kwargs.items()}
    if not isinstance(local, LocalOp):
        return function(*merged, **named)
    if local.name not in FORMS:
        raise UsageError(f"no rank can run {local.name!r}; local ops are {', '.join(sorted(FORMS))}")
    return FORMS[local.name](local, function, merged, named, axis)


def _merged(one: Any, told: Argument) -> Any:
    """The rank's argument: its tensors, types and devices as given, numbers as the local op says."""
    if isinstance(one, torch.Tensor):
        return one
    if isinstance(one, list | tuple):
        if not isinstance(told, tuple):
            return told
        if len(one) == len(told):
            return [_merged(part, other) for part, other in zip(one, told, strict=True)]
        return list(told)
    return told if isinstance(told, int | float | bool | str) else one


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        return axis.all_reduce(x, "sum")

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return axis.all_reduce(x, "sum")

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.axis.all_reduce(gradients[0], "sum"), None


def total(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over ranks where every rank goes on alike."""
    found: torch.Tensor = _Total.apply(x, axis)  # type: ignore[no-untyped-call]
    return found


def spread(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum over ranks where every rank goes on with a piece of its own."""
    found: torch.Tensor = _Spread.apply(x, axis)  # type: ignore[no-untyped-call]
    return found


def _mean_share(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    return function(*args, **kwargs) * (local.number("part") / local.number("of"))


def _slice(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    return aten.slice.Tensor(args[0], local.number("dim"), 0, None, local.number("step"))


def _arange(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    return function(*args, **kwargs)[local.number("start") : local.number("end")]


def _vocabulary(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    """Rows of ids outside the rank's part of the table are zero."""
    table, ids = args[0], args[1] - local.number("start")
    mine = (ids >= 0) & (ids < table.shape[0])
    padding = int(args[2]) - local.number("start") if len(args) > 2 else -1
    rest = (padding if 0 <= padding < table.shape[0] else -1, *args[3:])
    rows = function(table, torch.where(mine, ids, 0), *rest, **kwargs)
    return rows * mine.unsqueeze(-1).to(rows.dtype)


def _mean_loss(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    """The sum of the rank's losses over the count (or weight) of the labels that count on all ranks."""
    scores, target = args[0], args[1]
    weight = _given(args, kwargs, 2, "weight", None)
    ignored = target == _given(args, kwargs, 4, "ignore_index", -100)
    each = torch.ones_like(target, dtype=scores.dtype) if weight is None else weight[target.masked_fill(ignored, 0)]
    count = axis.all_reduce(each.detach().masked_fill(ignored, 0).sum(), "sum")
    return function(*_with(args, 3, 2), **{name: one for name, one in kwargs.items() if name != "reduction"}) / count


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if position < len(args) else kwargs.get(name, default)


def _with(args: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    padded = (*args, *(None,) * (position - len(args)))
    return (*padded[:position], value, *padded[position + 1 :])


def _vocabulary_loss(
    local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """Cross entropy of scores cut on classes: log sum exp(score) - score of the label, each summed over ranks."""
    scores, target = args[0], args[1]
    reduction = _given(args, kwargs, 3, "reduction", 1)
    ignored = target == _given(args, kwargs, 4, "ignore_index", -100)
    smoothing = _given(args, kwargs, 5, "label_smoothing", 0.0)
    largest = axis.all_reduce(scores.detach().amax(1), "max")
    ids = target - local.number("start")
    mine = (ids >= 0) & (ids < scores.shape[1])
    own = scores.gather(1, torch.where(mine, ids, 0).unsqueeze(1)).squeeze(1) * mine
    sums = [(scores - largest.unsqueeze(1)).exp().sum(1), own, *([scores.sum(1)] if smoothing else [])]
    exponentials, label, *everything = total(torch.stack(sums), axis).unbind(0)
    normaliser = exponentials.log() + largest
    losses = normaliser - label
    if smoothing:
        even = normaliser - everything[0] / local.number("of")
        losses = (1 - smoothing) * losses + smoothing * even
    losses = losses.masked_fill(ignored, 0)
    if reduction == 0:
        return losses
    return losses.sum() if reduction == 2 else losses.sum() / (~ignored).sum()


def _attention_rows(
    local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """Causal attention of a piece of the queries: query i of the whole sees keys 0..i."""
    query, key = args[0], args[1]
    rows = torch.arange(local.number("start"), local.number("end"), device=query.device).unsqueeze(1)
    allowed = rows >= torch.arange(key.shape[-2], device=query.device)
    plain = {name: one for name, one in kwargs.items() if name not in ("is_causal", "attn_mask")}
    return function(*args[:3], allowed, *args[4:5], *((False, *args[6:]) if len(args) > 5 else ()), **plain)


def _attention_heads(
    local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """Grouped heads with whole keys and values: each query head's own key and value head is repeated for it."""
    query, key, value = args[:3]
    heads = torch.arange(local.number("start"), local.number("end"), device=query.device)
    chosen = heads * key.shape[-3] // local.number("of")
    key, value = (one.index_select(-3, chosen) for one in (key, value))
    return function(query, key, value, *args[3:], **kwargs)


def _batch_norm(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    """Batch norm in training, its statistics over all ranks (biased for the result, unbiased for the running ones)."""
    x, weight, bias, mean, variance, _, momentum, eps = args[:8]
    dims = [dim for dim in range(x.dim()) if dim != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    count = local.number("count")
    average = spread(x.sum(dims), axis) / count
    centred = x - average.view(shape)
    spread_ = spread(centred.square().sum(dims), axis) / count
    if mean is not None:
        with torch.no_grad():
            mean.lerp_(average.to(mean.dtype), momentum)
            variance.lerp_((spread_ * count / (count - 1)).to(variance.dtype), momentum)
    made = centred * torch.rsqrt(spread_ + eps).view(shape)
    if weight is not None:
        made = made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)


FORMS: dict[str, Callable[[LocalOp, Function, tuple[Any, ...], dict[str, Any], Axis], Any]] = {
    "mean_share": _mean_share,
    "slice": _slice,
    "arange": _arange,
    "vocabulary": _vocabulary,
    "mean_loss": _mean_loss,
    "vocabulary_loss": _vocabulary_loss,
    "attention_rows": _attention_rows,
    "attention_heads": _attention_heads,
    "batch_norm": _batch_norm,
}
