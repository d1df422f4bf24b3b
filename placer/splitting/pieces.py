"""The piece of a tensor that one device of a replica has, its sizes still affine in rows."""

from __future__ import annotations

from dataclasses import replace

from placer.graph import Affine, Parameter, Tensor
from placer.rules.layouts import Cut, State, ranges


def held_value(tensor: Tensor, state: State, degree: int, rank: int) -> Tensor:
    """The piece of a value on device `rank` of `degree`; a dim that grows with the rows has pieces that grow alike."""
    if not isinstance(state.value, Cut):
        return tensor
    dim, size = state.value.dim, tensor.shape[state.value.dim]
    mine = Affine(_length(state.value, size.fixed, degree, rank), size.per_row // degree)
    return replace(tensor, shape=(*tensor.shape[:dim], mine, *tensor.shape[dim + 1 :]))


def held_parameter(parameter: Parameter, state: State, degree: int, rank: int) -> Parameter:
    """What device `rank` of `degree` holds of a parameter; `summed` where its gradient is a part on each device."""
    if not isinstance(state.value, Cut):
        return replace(parameter, summed=state.gradient != state.value)
    dim = state.value.dim
    size = _length(state.value, parameter.shape[dim], degree, rank)
    return replace(parameter, shape=(*parameter.shape[:dim], size, *parameter.shape[dim + 1 :]))


def _length(lay: Cut, size: int, degree: int, rank: int) -> int:
    return sum(end - start for start, end in ranges(lay, size, degree, rank))
