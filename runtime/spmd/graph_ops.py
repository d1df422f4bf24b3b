"""Ops that are not the whole op on smaller tensors, as functions that stand in a rank's graph.

`local_op(name)` is the function for a `LocalOp`; `REWRITTEN` has what stands for the ops that the runtime changes in
every layout (losses by the global count, dropout by keyed masks, batch norm by the mode), where they are cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch

from placer.errors import UsageError
from placer.rules.calls import Call
from placer.rules.layouts import LocalOp
from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.local_ops import FORMS
from placer.runtime.spmd.local_ops.calls import Given
from placer.runtime.stages import losses, rewrite
from placer.runtime.stages.dropout import attention, dropout, kept
from placer.runtime.stages.pass_context import PassContext

aten = torch.ops.aten
SUM = 2  # at::Reduction
Function = Callable[..., object]
Arguments = tuple[object, ...]
Place = dict[str, int]  # dim, start, end and of: a rank's piece of a dim


@cache
def local_op(name: str) -> Function:
    """The function `name(op, args, kwargs, axis, target, numbers...)`. Raises UsageError where there is none.

    inner: the name, axis and numbers of the local op that stands for `op` along the inner axis of two.
    """
    if name not in FORMS:
        raise UsageError(f"no rank can run {name!r}; local ops are {', '.join(sorted(FORMS))}")
    form = FORMS[name]

    def run(
        op: Function,
        args: Arguments,
        kwargs: dict[str, object],
        axis: Axis,
        target: str,
        order: tuple[int, ...] = (),
        inner: tuple[str, Axis, dict[str, int]] | None = None,
        **numbers: int,
    ) -> object:
        function = op if inner is None else _within(op, target, *inner)
        local = LocalOp(name=name, call=Call(target=target), numbers=tuple(numbers.items()), order=tuple(order))
        return form(Given(local=local, function=function, args=tuple(args), kwargs=kwargs, axis=axis))

    run.__name__ = run.__qualname__ = name
    return run


def _within(op: Function, target: str, name: str, axis: Axis, numbers: dict[str, int]) -> Function:
    """The local op `name` of `op`, to be called as `op` is."""

    def called(*args: object, **kwargs: object) -> object:
        return local_op(name)(op, args, kwargs, axis, target, **numbers)

    return called


def weighted(share: torch.Tensor, part: int, of: int) -> torch.Tensor:
    """A mean over a piece as its part of the whole mean."""
    return share * (part / of)


def vocabulary_cross_entropy(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: None,
    ignore_index: int,
    smoothing: float,
    index: int,
    *,
    axis: Axis,
    start: int,
    end: int,
    of: int,
    mode: PassContext,
) -> torch.Tensor:
    """`losses.cross_entropy` of scores whose classes are cut; every rank has the whole of it."""
    args = (scores, target, weight, SUM, ignore_index, smoothing)
    summed = local_op("vocabulary_loss")(
        aten.cross_entropy_loss.default, args, {}, axis, "aten::cross_entropy_loss", start=start, end=end, of=of
    )
    assert isinstance(summed, torch.Tensor)
    return losses.over_count(summed, index, mode)


def dropout_piece(
    values: torch.Tensor,
    probability: float,
    op: int,
    batched: bool,
    *,
    dim: int,
    start: int,
    end: int,
    of: int,
    mode: PassContext,
    other: Place | None = None,
) -> torch.Tensor:
    """`dropout.dropout` of a piece: the piece of the whole op's mask; `other`: where it stands along the inner axis."""
    if not mode.training or mode.keys is None or probability == 0.0 or values.numel() == 0:
        return values
    if probability == 1.0:
        return values * 0.0
    places = ({"dim": dim, "start": start, "end": end, "of": of}, *((other,) if other else ()))
    keep = _piece_of_mask(values.shape, probability, op, batched, places, mode)
    return values * keep / (1.0 - probability)


def attention_piece(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    probability: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
    op: int,
    *,
    dim: int,
    start: int,
    end: int,
    of: int,
    mode: PassContext,
    other: Place | None = None,
) -> torch.Tensor:
    """`dropout.attention` of some heads or of some rows of the queries (dims of the result that are cut)."""
    firsts = {dim: start} if other is None else {dim: start, other["dim"]: other["start"]}
    first = firsts.get(query.dim() - 2, 0)
    if causal:
        seen = torch.arange(first, first + query.shape[-2], device=query.device).unsqueeze(1)
        mask = seen >= torch.arange(key.shape[-2], device=query.device)
    if not mode.training or mode.keys is None or probability == 0.0:
        return attention(query, key, value, mask, 0.0, False, scale, grouped, op, mode)
    if grouped:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    kept_weights = dropout_piece(
        weights, probability, op, True, dim=dim, start=start, end=end, of=of, mode=mode, other=other
    )
    return kept_weights @ value


def _piece_of_mask(
    shape: torch.Size, probability: float, op: int, batched: bool, places: tuple[Place, ...], mode: PassContext
) -> torch.Tensor:
    assert mode.keys is not None
    sizes = list(shape)
    for place in places:
        sizes[place["dim"]] = place["of"]
    keep = kept(torch.Size(sizes), probability, op, mode.keys if batched else mode.keys.new_zeros(1))
    for place in places:
        keep = keep.narrow(place["dim"], place["start"], place["end"] - place["start"])
    return keep


def summed_batch_norm(
    values: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    momentum: float,
    epsilon: float,
    *,
    axis: Axis,
    count: int,
    mode: PassContext,
) -> torch.Tensor:
    """`rewrite.batch_norm` of a tile: its statistics are those of all `count` elements of a channel on all ranks."""
    if not training or (not mode.training and mean is not None):
        return rewrite.batch_norm(values, weight, bias, mean, variance, training, momentum, epsilon, mode=mode)
    if not mode.updating and mean is not None and variance is not None:
        mean, variance = mean.clone(), variance.clone()
    args = (values, weight, bias, mean, variance, True, momentum, epsilon, False)
    made = local_op("batch_norm")(aten.batch_norm.default, args, {}, axis, "aten::batch_norm", count=count)
    assert isinstance(made, torch.Tensor)
    return made


#: (what the runtime calls in every layout, how the op is cut) -> what a rank calls, with the numbers of its place.
REWRITTEN: dict[tuple[Function, str], Function] = {
    (losses.cross_entropy, "vocabulary_loss"): vocabulary_cross_entropy,
    (dropout, "dropout"): dropout_piece,
    (attention, "attention_dropout"): attention_piece,
    (rewrite.batch_norm, "batch_norm"): summed_batch_norm,
}
#: Those whose function serves pieces as it is: they divide by the count of the global batch.
COUNTED = frozenset({losses.cross_entropy, losses.nll})
#: Those that take a mean over all they get, so that a piece's is weighted.
SHARES = frozenset({losses.share_of_mean, rewrite.share_of_elementwise})
#: Which of the functions above talk to the other ranks.
TALKING = frozenset({vocabulary_cross_entropy, summed_batch_norm})
