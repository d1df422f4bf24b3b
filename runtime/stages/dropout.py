"""Dropout and attention whose masks are keyed (`keyed_numbers`), so that no layout changes them.

On a GPU what drops is one kernel forward and one backward (`one_kernel`): torch's own ops would go over the scores of
an attention some fifteen times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch.autograd.function import FunctionCtx

from placer.runtime.stages.keyed_numbers import above, keys_for, least, steps
from placer.runtime.stages.one_kernel import one_kernel, runs_as_one
from placer.runtime.stages.pass_context import PassContext

Place = dict[str, int]  # dim, start, end and of: where a piece of a dim stands
Tensors = tuple[torch.Tensor, ...]
# What autocast makes of 16 bits; numbers of 64 bits stay.
_CAST = (torch.float32, torch.float16, torch.bfloat16)


def dropout(
    values: torch.Tensor,
    probability: float,
    op: int,
    rows: int | None,
    mode: PassContext,
    places: tuple[Place, ...] = (),
) -> torch.Tensor:
    """`values` with elements dropped by the mask of dropout number `op`; all of them in evaluation.

    rows: the dim that is a whole number of entries per row; values without one get the same mask in every layout. A
    piece, which stands at `places` in the whole, takes its piece of the whole's mask.
    """
    if not mode.training or mode.keys is None or probability == 0.0 or values.numel() == 0:
        return values
    if probability == 1.0:
        return values * 0.0
    if not places and rows in (0, None) and _fits(values):
        elements = _Elements.of(values.shape, op, mode.keys_of(rows is not None))
        return cast(torch.Tensor, _Dropped.apply(values, elements, probability))  # type: ignore[no-untyped-call]
    return values * _keep(values.shape, probability, op, rows, mode, places) / (1.0 - probability)


def _keep(
    shape: torch.Size, probability: float, op: int, rows: int | None, mode: PassContext, places: tuple[Place, ...]
) -> torch.Tensor:
    """The mask of values of `shape`, or of the piece of them at `places`."""
    sizes = list(shape)
    for place in places:
        sizes[place["dim"]] = place["of"]
    if rows is not None:  # the mask is made with them in front
        sizes.insert(0, sizes.pop(rows))
    keep = kept(torch.Size(sizes), probability, op, mode.keys_of(rows is not None))
    keep = keep if rows is None else keep.movedim(0, rows)
    for place in places:
        keep = keep.narrow(place["dim"], place["start"], place["end"] - place["start"])
    return keep


def kept(shape: torch.Size, probability: float, op: int, keys: torch.Tensor) -> torch.Tensor:
    """The boolean mask of `shape`, its elements in row-major order divided evenly among the rows of `keys`."""
    made: torch.Tensor = one_kernel(above)(*_Elements.of(shape, op, keys), least(probability))
    return made.view(shape)


class _Elements(NamedTuple):
    """Where the elements of values stand in the numbers of their rows: those of a last dim are `steps` from `places`.

    Both are small: a compiler that is left to number elements itself multiplies beyond 64 bits.
    """

    places: torch.Tensor
    steps: torch.Tensor

    @staticmethod
    def of(shape: torch.Size, op: int, keys: torch.Tensor) -> _Elements:
        """Of dropout number `op`, divided evenly among `keys`."""
        per_row = math.prod(shape) // keys.numel()
        last = shape[-1] if len(shape) > 1 else per_row
        own = keys_for(op + 1, keys).unsqueeze(1)
        made = _known_steps if runs_as_one(keys) else steps  # there making them takes as long as using them
        return _Elements(own + made(per_row // last, keys.device, last), made(last, keys.device))


_known_steps = lru_cache(maxsize=64)(steps)


def _fits(values: torch.Tensor) -> bool:
    """Whether the one kernel serves: rows in front as they lie, numbers no wider than those that a compiler may make of
    the factors."""
    plain = values.is_contiguous() and values.numel() > 0 and values.dtype != torch.float64
    return plain and runs_as_one(values)


class _Saved(FunctionCtx):
    """What a backward needs besides tensors."""

    probability: float
    factor: float


class _Dropped(torch.autograd.Function):
    """`values * mask / (1 - probability)`, its gradient likewise."""

    @staticmethod
    def forward(ctx: _Saved, values: torch.Tensor, elements: _Elements, probability: float) -> torch.Tensor:
        laid = values.view(*elements.places.shape, -1)
        made, keep = cast(Tensors, one_kernel(_thinned)(laid, *elements, least(probability), 1.0 - probability))
        ctx.save_for_backward(keep.view(values.shape))
        ctx.probability = probability
        return made.view(values.shape)

    @staticmethod
    def backward(ctx: _Saved, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (keep,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return _one_kernel_once(_times)(gradient, keep, 1.0 - ctx.probability), None, None


def _thinned(
    values: torch.Tensor, places: torch.Tensor, steps: torch.Tensor, least: int, share: float
) -> Tensors:  # fmt: skip
    keep = above(places, steps, least)
    return _times(values, keep, share), keep


def _times(values: torch.Tensor, keep: torch.Tensor, share: float) -> torch.Tensor:
    return values * keep / share


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    probability: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
    op: int,
    batched: bool,
    mode: PassContext,
    places: tuple[Place, ...] = (),
) -> torch.Tensor:
    """Scaled dot-product attention whose dropout is `dropout`; in evaluation and without dropout torch's own kernel.

    batched: whether dim 0 of the scores holds batch rows, which learned queries and keys have none of.
    """
    if not mode.training or mode.keys is None or probability == 0.0:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped
        )
    if grouped:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    with _one_op(query) as cast_once:
        query, key, value = map(cast_once, (query, key, value))
        mask = None if mask is None else cast_once(mask)
        scores = query @ key.transpose(-2, -1)
        if probability < 1.0 and not places and _fits(scores) and (mask is None or not mask.requires_grad):
            elements = _Elements.of(scores.shape, op, mode.keys_of(batched))
            made = _Weighed.apply(scores, mask, causal, factor, elements, probability)  # type: ignore[no-untyped-call]
            return cast(Tensors, made)[0] @ value
        scores = _weighed(scores, mask, causal, factor)  # nobody holds them as they were while the mask is made
        return dropout(scores, probability, op, 0 if batched else None, mode, places) @ value


@contextmanager
def _one_op(like: torch.Tensor) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """What autocast makes of what an op of 16 bits reads; in the body nothing else is cast."""
    kind = like.device.type
    if not torch.is_autocast_enabled(kind):
        yield lambda tensor: tensor
        return
    dtype = torch.get_autocast_dtype(kind)
    with torch.autocast(kind, enabled=False):
        yield lambda tensor: tensor.to(dtype) if tensor.dtype in _CAST else tensor


def _weighed(scores: torch.Tensor, mask: torch.Tensor | None, causal: bool, factor: float) -> torch.Tensor:
    """The weights of an attention's keys; zeros where a query may look at none, as torch's own have it."""
    scores = scores * factor
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights: torch.Tensor = torch.ops.aten._safe_softmax.default(scores, -1)
    return weights


class _Weighed(torch.autograd.Function):
    """The weights of an attention's keys, dropped, and as they were, which only a derivative of a derivative reads."""

    @staticmethod
    def forward(
        ctx: _Saved, scores: torch.Tensor, mask: torch.Tensor | None, causal: bool, factor: float, elements: _Elements,
        probability: float,
    ) -> Tensors:  # fmt: skip
        share, run = 1.0 - probability, one_kernel(_weighed_thinned)
        dropped, weights, keep = cast(Tensors, run(scores, mask, causal, factor, *elements, least(probability), share))
        ctx.save_for_backward(weights, keep)
        ctx.set_materialize_grads(False)
        ctx.probability, ctx.factor = probability, factor
        return dropped, weights

    @staticmethod
    def backward(
        ctx: _Saved, gradient: torch.Tensor | None, of_weights: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        weights, keep = ctx.saved_tensors  # type: ignore[attr-defined]
        back, share = None, 1.0 - ctx.probability
        if gradient is not None:
            back = _one_kernel_once(_weighed_back)(gradient, weights, keep, share, ctx.factor)
        if of_weights is not None:
            more = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype) * ctx.factor
            back = more if back is None else back + more
        return back, None, None, None, None, None


def _weighed_thinned(
    scores: torch.Tensor, mask: torch.Tensor | None, causal: bool, factor: float, places: torch.Tensor,
    steps: torch.Tensor, least: int, share: float,
) -> Tensors:  # fmt: skip
    weights = _weighed(scores, mask, causal, factor)
    keep = above(places, steps, least).view(weights.shape)
    return _times(weights, keep, share), weights, keep


def _weighed_back(
    gradient: torch.Tensor, weights: torch.Tensor, keep: torch.Tensor, share: float, factor: float
) -> torch.Tensor:
    """The gradient of scores: of a softmax it is weights * (gradient - sum of gradient * weights)."""
    kept = _times(gradient, keep, share)
    back: torch.Tensor = torch._softmax_backward_data(kept, weights, -1, weights.dtype) * factor
    return back


def _one_kernel_once(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`function` as one kernel, op by op where what it gives will be derived in turn."""
    return function if torch.is_grad_enabled() else one_kernel(function)
