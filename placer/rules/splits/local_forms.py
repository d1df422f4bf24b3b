"""What a rank runs of an op that is cut along one axis or along two: the local op of one axis, cut along the other."""

from __future__ import annotations

from typing import NamedTuple

from placer.errors import UsageError
from placer.rules.calls import Call
from placer.rules.layouts import Choice, LocalOp
from placer.rules.splits.localise import legal, localise
from placer.rules.two_axis_layouts import place, strands


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
