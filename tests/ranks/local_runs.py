"""run_local: a rank's op on its pieces, as `placer.rules.splits.localise` says, without a graph around it.

Dropout is here, not in the runtime, which rewrites it: the mask is read off the op itself, as torch draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from placer.rules import Argument, Call
from placer.rules.layouts import LocalOp
from placer.runtime.spmd import Axis
from placer.runtime.spmd.local_ops import FORMS
from placer.runtime.spmd.local_ops.calls import Function, Given
from placer.runtime.spmd.local_ops.positions import causal_mask


def run_local(
    local: Call | LocalOp, function: Function, args: tuple[object, ...], kwargs: dict[str, object], axis: Axis
) -> object:
    """The rank's result. `args` and `kwargs` are the whole op's, its tensors replaced by the rank's pieces."""
    call = local.call if isinstance(local, LocalOp) else local
    merged = tuple(_merged(one, told) for one, told in zip(args, call.arguments, strict=True))
    named = {name: _merged(kwargs.get(name), told) for name, told in call.keywords}
    if not isinstance(local, LocalOp):
        return function(*merged, **named)
    form = DROPPING.get(local.name) or FORMS[local.name]
    return form(Given(local=local, function=function, args=merged, kwargs=named, axis=axis))


def _merged(one: object, told: Argument) -> object:
    """The rank's argument: its tensors, types and devices as given, numbers as the local op says."""
    if isinstance(one, list | tuple) and isinstance(told, tuple) and len(one) == len(told):
        return [_merged(part, other) for part, other in zip(one, told, strict=True)]
    if isinstance(told, tuple) and not isinstance(one, torch.Tensor):
        return list(told)
    return told if isinstance(told, int | float | bool | str) else one


def _dropout(given: Given) -> torch.Tensor:
    """The rank's piece of the whole op's mask, which is what the op makes of ones, on its values."""
    x, dim = given.tensor(0), given.place("dim")
    shape = [given.place("of") if at == dim else size for at, size in enumerate(x.shape)]
    mask = given.replaced(0, "input", x.new_ones(shape)).called()
    return x * mask.narrow(dim, given.place("start"), given.place("end") - given.place("start"))


def _attention_dropout(given: Given) -> torch.Tensor:
    """Attention of a piece with dropout: the scores are dropped by the piece of the whole op's mask.

    The mask is read off the op itself: of equal scores and an identity for values it gives the mask's factors.
    """
    query, key, value = (given.tensor(position) for position in range(3))
    query, key, value = (one.unsqueeze(0) if query.dim() == 3 else one for one in (query, key, value))
    key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scale = given.option(6, "scale", None)
    scores = query @ key.transpose(-2, -1) * (scale if isinstance(scale, float) else 1 / math.sqrt(query.shape[-1]))
    causal = given.option(5, "is_causal", False) is True
    mask = _causal(given) if causal else given.optional(3, "attn_mask")
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    dropped = scores.softmax(-1) * _factors(given, scores)
    return (dropped @ value).view(given.local.call.outputs[0].shape)


def _causal(given: Given) -> torch.Tensor:
    query = given.tensor(0)
    return causal_mask(query, given.tensor(1), given.place("start") if given.place("dim") == query.dim() - 2 else 0)


def _factors(given: Given, scores: torch.Tensor) -> torch.Tensor:
    """The rank's piece of the whole mask: 0, or 1 / (1 - probability)."""
    query, keys = given.tensor(0), scores.shape[-1]
    shape = list(query.shape)
    shape[given.place("dim")] = given.place("of")
    zeros = query.new_zeros([*shape[:-1], 1])
    identity = torch.eye(keys, dtype=query.dtype, device=query.device).expand(*shape[:-2], keys, keys)
    probability = given.number(4, "dropout_p", 0.0)
    uniform = given.function(zeros, identity[..., :1] * 0, identity, None, probability, False)
    assert isinstance(uniform, torch.Tensor)
    piece = uniform.narrow(given.place("dim"), given.place("start"), given.place("end") - given.place("start"))
    return (piece * keys).view(scores.shape)


DROPPING: dict[str, Callable[[Given], torch.Tensor]] = {"dropout": _dropout, "attention_dropout": _attention_dropout}
