"""Ops that are not the whole op on smaller tensors, as functions that stand in a rank's graph.

`local_op(name)` is the function for a `LocalOp`; `REWRITTEN` has what stands for the ops that the runtime changes in
every layout (losses by the global count, dropout by keyed masks, batch norm by the mode), where they are cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import fx

from placer.errors import UsageError
from placer.rules.calls import Call
from placer.rules.layouts import LocalOp
from placer.runtime.spmd import local_ops
from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.collectives import exchange
from placer.runtime.spmd.conversions import CONVERSIONS
from placer.runtime.spmd.local_ops import FORMS
from placer.runtime.spmd.local_ops.calls import Given
from placer.runtime.spmd.local_ops.positions import causal_mask
from placer.runtime.stages import losses, rewrite
from placer.runtime.stages.dropout import Place, attention, dropout
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.trained_ops import instance_norm

aten = torch.ops.aten
SUM = 2  # at::Reduction
Function = Callable[..., object]
Arguments = tuple[object, ...]


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
    values: torch.Tensor, probability: float, op: int, rows: int | None, *, mode: PassContext,
    other: Place | None = None, **place: int,
) -> torch.Tensor:  # fmt: skip
    """`dropout.dropout` of a piece: the piece of the whole op's mask; `other`: where it stands along the inner axis."""
    return dropout(values, probability, op, rows, mode, (place, other) if other else (place,))


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
    batched: bool,
    *,
    mode: PassContext,
    other: Place | None = None,
    **place: int,
) -> torch.Tensor:
    """`dropout.attention` of some heads or of some rows of the queries (dims of the result that are cut)."""
    places = (place, other) if other else (place,)
    if causal:
        first = {one["dim"]: one["start"] for one in places}.get(query.dim() - 2, 0)
        mask = causal_mask(query, key, first)
    return attention(query, key, value, mask, probability, False, scale, grouped, op, batched, mode, places)


def summed_batch_norm(*given: object, axis: Axis, count: int, mode: PassContext) -> torch.Tensor:
    """`rewrite.batch_norm` of a tile: its statistics are those of all `count` elements of a channel on all ranks."""

    def normalised(
        values: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
        *rest: object,
    ) -> object:  # fmt: skip
        args = (values, weight, bias, mean, variance, *rest, False)
        return local_op("batch_norm")(aten.batch_norm.default, args, {}, axis, "aten::batch_norm", count=count)

    return rewrite.batch_norm(*given, mode=mode, normalised=normalised)  # type: ignore[arg-type]


def with_written(made: torch.Tensor, buffer: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`made`, by an op that wrote into `value`, which is `buffer` as it wanted it: the buffer has it, too."""
    # Not counted as a write, as those of norms are not.
    buffer.data.copy_(value)
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
#: Which of the functions above talk to the other ranks.
TALKING = frozenset({vocabulary_cross_entropy, summed_batch_norm})


def talks(node: fx.Node) -> bool:
    """Whether other ranks hear of it: a conversion, rows of neighbours, or an op with a collective inside."""
    if node.op != "call_function":
        return False
    inside = node.kwargs.get("inner")  # the local op along the inner of two axes
    if isinstance(inside, tuple | list) and inside[0] in local_ops.TALKING:
        return True
    target = node.target
    if target is exchange or target in TALKING or target in CONVERSIONS.values():
        return True
    return any(target is local_op(name) for name in local_ops.TALKING)


def varying(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes of as many rows as routing sends to the rank's experts, from where these come to where they go back."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        back = node.target is local_op("experts_from")
        if node.target is local_op("experts_to") or not (back or found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return frozenset(found)


#: Those that write running statistics, the fourth and fifth of their arguments.
STATISTICS = frozenset({rewrite.batch_norm, instance_norm})
