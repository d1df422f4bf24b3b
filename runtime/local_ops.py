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
from torch.nn import functional

from placer.errors import UsageError
from placer.rules import Argument, Call
from placer.rules.layouts import LocalOp, piece

aten = torch.ops.aten
Function = Callable[..., Any]


class Axis(Protocol):
    """The ranks along one mesh axis."""

    degree: int
    rank: int

    def all_reduce(self, tensor: torch.Tensor, reduce: str) -> torch.Tensor:
        """The sum or maximum (`"sum"`, `"max"`) of the ranks' tensors, as a new tensor without history."""
        ...

    def all_to_all(self, tensor: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, list[int]]:
        """Sends `counts[r]` rows to rank r, in order; the rows received, in the order of ranks, and how many of each."""
        ...


def run_local(
    local: Call | LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """The rank's result. `args` and `kwargs` are the whole op's, its tensors replaced by the rank's pieces."""
    call = local.call if isinstance(local, LocalOp) else local
    merged = tuple(_merged(one, told) for one, told in zip(args, call.arguments, strict=True))
    told = dict(call.keywords)
    named = {name: _merged(kwargs.get(name), one) for name, one in told.items()}
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
    if one is None and isinstance(told, tuple):
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


def _window(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    """A sliding window over the rank's rows, with what it reads beyond the edge put there."""
    fill = float("-inf") if "max_pool" in local.call.target else 0.0
    before, behind, dim = (local.number(name) for name in ("before", "behind", "dim"))
    sides = [0] * (2 * (args[0].dim() - 1 - dim)) + [before, behind]
    x = functional.pad(args[0], sides, value=fill)
    if _given(args, kwargs, 4, "padding", 0) == "same":
        x, args, kwargs = _same_elsewhere(local, x, args, kwargs, dim)
    return function(x, *args[1:], **kwargs)


def _same_elsewhere(
    local: LocalOp, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int
) -> tuple[torch.Tensor, tuple[Any, ...], dict[str, Any]]:
    """Padding "same" written out on the other dims, and "valid" instead."""
    kernel = args[1].shape[2:]
    apart = _given(args, kwargs, 5, "dilation", 1)
    listed = [apart] * len(kernel) if isinstance(apart, int) else [*apart] * (len(kernel) // len(apart))
    sides: list[int] = []
    for at in reversed(range(len(kernel))):
        reach = 0 if x.dim() - len(kernel) + at == dim else listed[at] * (kernel[at] - 1)
        sides += [reach // 2, reach - reach // 2]
    padded = functional.pad(x, sides)
    if len(args) > 4:
        return padded, _with(args, 4, "valid"), kwargs
    return padded, args, {**kwargs, "padding": "valid"}


def _transposed_window(
    local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """A transposed convolution of the rank's rows, cropped or filled up to the rank's piece of the result."""
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    plain = {name: one for name, one in kwargs.items() if name != "bias"}
    made = function(*(_with(args, 2, None) if len(args) > 2 else args), **plain)
    dim, first, length = (local.number(name) for name in ("dim", "from", "length"))
    sides = [0] * (2 * (made.dim() - 1 - dim)) + [-first, length - (made.shape[dim] - first)]
    placed = functional.pad(made, sides)
    space = args[1].dim() - 2
    return placed if bias is None else placed + bias.view([-1] + [1] * space)


def _experts(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    """All rows are here, sorted by expert: those of the rank's experts are computed, the others are zero."""
    x, weight, offsets = args[:3]
    start, end = local.number("start"), local.number("end")
    first = int(offsets[start - 1]) if start else 0
    last = int(offsets[end - 1])
    made = function(x[first:last], weight, offsets[start:end] - first, *args[3:], **kwargs)
    return functional.pad(made, [0, 0, first, x.shape[0] - last])


def _experts_apart(
    local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis
) -> Any:
    """The rank's rows, sorted by expert, go to the ranks of their experts, are sorted there, computed and sent back."""
    x, weight, offsets = args[:3]
    counts = torch.diff(offsets, prepend=offsets.new_zeros(1))
    bounds = [piece(len(counts), axis.degree, rank) for rank in range(axis.degree)]
    received, _ = axis.all_to_all(counts, [end - start for start, end in bounds])
    experts = received.view(axis.degree, -1)
    sent = [int(counts[start:end].sum()) for start, end in bounds]
    rows = _Exchange.apply(x, sent, axis)  # type: ignore[no-untyped-call]
    every = torch.arange(experts.shape[1], device=x.device).repeat(axis.degree)
    order = every.repeat_interleave(experts.flatten()).argsort(stable=True)
    made = function(rows[order], weight, experts.sum(0).cumsum(0).to(offsets.dtype), *args[3:], **kwargs)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=x.device)
    return _Exchange.apply(made[back], experts.sum(1).tolist(), axis)  # type: ignore[no-untyped-call]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, counts: list[int], axis: Axis) -> torch.Tensor:
        made, ctx.received = axis.all_to_all(x, counts)
        ctx.axis = axis
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.axis.all_to_all(gradients[0].contiguous(), ctx.received)[0], None, None


def _own_numbers(local: LocalOp, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], axis: Axis) -> Any:
    """Row numbers of the whole, counted from the rank's first row."""
    return function(args[0], args[1], args[2] - local.number("start"), *args[3:], **kwargs)


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
    "window": _window,
    "experts": _experts,
    "experts_apart": _experts_apart,
    "own_numbers": _own_numbers,
    "transposed_window": _transposed_window,
}
