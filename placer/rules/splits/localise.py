"""localise(call, choice, degree, rank): the op that a rank runs on its pieces; local_forms: the same along two axes.

Mostly it is the same op with other sizes; where it is another, a `LocalOp` names it and says where the rank stands.
"""

from __future__ import annotations

from typing import NamedTuple

from placer.errors import UsageError
from placer.io.refusals import short
from placer.rules.calls import Call, Value
from placer.rules.cut_sizes import legal, window_rows
from placer.rules.layouts import Choice, LocalOp, State
from placer.rules.splits.rank_ops import FORMS, RankCall
from placer.rules.two_axis_layouts import held_shape, place, strands


def localise(call: Call, choice: Choice, degree: int, rank: int) -> Call | LocalOp:
    """The op that `rank` of `degree` runs. Raises UsageError where the degree does not divide what it must."""
    if not legal(choice, call, degree):
        shapes = ", ".join(str(list(value.shape)) for value in call.tensors)
        raise UsageError(f"{call.target} cannot be cut as {short(repr(choice.name))} {degree} times: {short(shapes)}")
    inputs = zip(call.tensors, choice.inputs, strict=True)
    values = [_piece(value, state, degree, rank) for value, state in inputs]
    for number, halo in enumerate(choice.halo):
        if halo is not None:
            rows = window_rows(choice, call, number, degree, rank)
            shape = values[number].shape
            shape = (*shape[: halo.dim], rows.end - rows.start, *shape[halo.dim + 1 :])
            values[number] = values[number]._replace(shape=shape)
    outputs = zip(call.outputs, choice.outputs, strict=True)
    local = call.with_tensors(values, tuple(_piece(value, state, degree, rank) for value, state in outputs))
    if not choice.local:
        return local
    return FORMS[choice.local](RankCall(whole=call, call=local, choice=choice, degree=degree, rank=rank))


def _piece(value: Value, state: State, degree: int, rank: int) -> Value:
    return value._replace(shape=held_shape(value.shape, state.value, degree, rank))


class AxisOp(NamedTuple):
    """A local op along an axis (None: the only one)."""

    axis: int | None
    local: LocalOp


class Localised(NamedTuple):
    """The call of a rank, and the local ops it stands in, the outer axis's first."""

    call: Call
    forms: tuple[AxisOp, ...] = ()


def local_forms(call: Call, choice: Choice, degree: int, rank: int) -> Localised:
    """The op that `rank` of `degree` runs. Raises UsageError where the degree does not divide what it must."""
    forms = []
    for axis, one in strands(choice):
        count, at = (degree, rank) if axis is None else place(degree, rank, choice.fast, axis)
        made = localise(call, one, count, at)
        if isinstance(made, LocalOp):
            forms.append(AxisOp(axis, made))
        call = made.call if isinstance(made, LocalOp) else made
    if len(forms) > 1 and any(isinstance(argument, str) for argument in call.arguments):
        raise UsageError(f"{call.target} pads to the same size by an uneven number of rows: cut it along one axis only")
    return Localised(call, tuple(forms))


def cuttable(choice: Choice, call: Call, degree: int) -> bool:
    """Whether the call's sizes can be cut so, along both axes where there are two."""
    if not choice.axes:
        return legal(choice, call, degree)
    outer, inner = choice.axes
    slow = degree // choice.fast
    if not legal(outer, call, slow):
        return False
    made = localise(call, outer, slow, 0)
    call = made.call if isinstance(made, LocalOp) else made
    windows = outer.local == inner.local == "window" and any(isinstance(one, str) for one in call.arguments)
    return not windows and legal(inner, call, choice.fast)
