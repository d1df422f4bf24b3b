"""run_local: a rank's op on its pieces, as `placer.rules.splits.localise` says; each named local op is a function here.

The pieces are as the choice's states say, windows with the rows of their neighbours already in them. Collectives within
an op go through the `Axis`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from placer.errors import UsageError
from placer.rules.calls import Argument, Call
from placer.rules.layouts import LocalOp
from placer.runtime.spmd.local_ops import attention as local_attention
from placer.runtime.spmd.local_ops import experts as local_experts
from placer.runtime.spmd.local_ops import losses as local_losses
from placer.runtime.spmd.local_ops import windows as local_windows
from placer.runtime.spmd.local_ops.calls import Axis, Function, Given


def run_local(
    local: Call | LocalOp, function: Function, args: tuple[object, ...], kwargs: dict[str, object], axis: Axis
) -> object:
    """The rank's result. `args` and `kwargs` are the whole op's, its tensors replaced by the rank's pieces."""
    call = local.call if isinstance(local, LocalOp) else local
    merged = tuple(_merged(one, told) for one, told in zip(args, call.arguments, strict=True))
    named = {name: _merged(kwargs.get(name), told) for name, told in call.keywords}
    if not isinstance(local, LocalOp):
        return function(*merged, **named)
    return run_form(local, function, merged, named, axis)


def run_form(
    local: LocalOp, function: Function, args: tuple[object, ...], kwargs: dict[str, object], axis: Axis
) -> torch.Tensor:
    """The result of a named local op whose arguments are already the rank's. UsageError where there is none."""
    if local.name not in FORMS:
        raise UsageError(f"no rank can run {local.name!r}; local ops are {', '.join(sorted(FORMS))}")
    return FORMS[local.name](Given(local=local, function=function, args=args, kwargs=kwargs, axis=axis))


def _merged(one: object, told: Argument) -> object:
    """The rank's argument: its tensors, types and devices as given, numbers as the local op says."""
    if isinstance(one, list | tuple) and isinstance(told, tuple) and len(one) == len(told):
        return [_merged(part, other) for part, other in zip(one, told, strict=True)]
    if isinstance(told, tuple) and not isinstance(one, torch.Tensor):
        return list(told)
    return told if isinstance(told, int | float | bool | str) else one


def _slice(given: Given) -> torch.Tensor:
    """Every step-th of the rank's rows."""
    everything = (slice(None),) * given.place("dim")
    return given.tensor(0)[(*everything, slice(None, None, given.place("step")))]


def _arange(given: Given) -> torch.Tensor:
    """The rank's piece of a range."""
    return given.called()[given.place("start") : given.place("end")]


def _dropout(given: Given) -> torch.Tensor:
    """The rank's piece of the whole op's mask, which is what the op makes of ones, on its values."""
    x, dim = given.tensor(0), given.place("dim")
    shape = [given.place("of") if at == dim else size for at, size in enumerate(x.shape)]
    mask = given.replaced(0, "input", x.new_ones(shape)).called()
    return x * mask.narrow(dim, given.place("start"), given.place("end") - given.place("start"))


def _vocabulary(given: Given) -> torch.Tensor:
    """Rows of ids outside the rank's part of the table are zero."""
    table, ids = given.tensor(0), given.tensor(1) - given.place("start")
    mine = (ids >= 0) & (ids < table.shape[0])
    padding = int(given.number(2, "padding_idx", -1)) - given.place("start")
    local = given.replaced(1, "indices", torch.where(mine, ids, 0))
    rows = local.replaced(2, "padding_idx", padding if 0 <= padding < table.shape[0] else -1).called()
    return rows * mine.unsqueeze(-1).to(rows.dtype)


FORMS: dict[str, Callable[[Given], torch.Tensor]] = {
    "slice": _slice,
    "arange": _arange,
    "dropout": _dropout,
    "vocabulary": _vocabulary,
    "mean_share": local_losses.mean_share,
    "mean_loss": local_losses.mean_loss,
    "vocabulary_loss": local_losses.vocabulary_loss,
    "attention_rows": local_attention.attention_rows,
    "attention_heads": local_attention.attention_heads,
    "attention_dropout": local_attention.attention_dropout,
    "batch_norm": local_windows.batch_norm,
    "window": local_windows.window,
    "transposed_window": local_windows.transposed_window,
    "experts": local_experts.experts,
    "experts_apart": local_experts.experts_apart,
    "experts_to": local_experts.experts_to,
    "experts_at": local_experts.experts_at,
    "experts_from": local_experts.experts_from,
    "own_numbers": local_experts.own_numbers,
}

#: Those that talk to the other ranks, or ask tensors for numbers to know what to send.
TALKING = frozenset({
    "mean_loss", "vocabulary_loss", "batch_norm", "experts", "experts_apart", "experts_to", "experts_at", "experts_from"
})  # fmt: skip
