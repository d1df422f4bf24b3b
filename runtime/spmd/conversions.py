"""From one layout to another: a value forward, its gradient back, each by one `Way`.

    way(have, want)     all_reduce      PARTIAL -> WHOLE
                        reduce_scatter  PARTIAL -> Cut
                        all_gather      Cut -> WHOLE
                        all_to_all      Cut -> another Cut
                        cut             WHOLE -> Cut       the rank's piece
                        placed          Cut -> PARTIAL     zeros around the rank's piece
                        share           WHOLE -> PARTIAL   all of it on the first rank, zeros on the others
                        same            nothing to do

A value in state `have` wanted in state `want` goes forward by way(have.value, want.value), and its gradient back by
way(want.gradient, have.gradient); both stand in the graph, as the function's name and as its `gradient`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from placer.errors import UsageError
from placer.rules.layouts import PARTIAL, WHOLE, Cut, Lay, conversion, ranges
from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.collectives import with_gradient

Name = Literal["same", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "cut", "placed", "share"]


class Way(NamedTuple):
    """How a layout becomes another: from pieces of `dim` (whole: `size`, None where all are equal), or to those of
    `to`; `parts` and `to_parts`, `order` and `to_order`, `every` and `to_every` are those of the dims."""

    name: Name
    dim: int = -1
    to: int = -1
    size: int | None = None
    parts: int = 1
    to_parts: int = 1
    order: tuple[int, ...] = ()
    to_order: tuple[int, ...] = ()
    every: int = 0
    to_every: int = 0

    @property
    def have(self) -> Cut:
        """The pieces it starts from."""
        return Cut(self.dim, parts=self.parts, order=tuple(self.order), every=self.every)

    @property
    def want(self) -> Cut:
        """The pieces it makes."""
        return Cut(self.to, parts=self.to_parts, order=tuple(self.to_order), every=self.to_every)


def way(have: Lay, want: Lay, size: int | None = None) -> Way:
    """What makes `want` of `have`; `size` of the dim that `have` cuts, None where its pieces are equal.

    Raises UsageError where nothing does.
    """
    if conversion(have, want) == "none":
        raise UsageError(f"nothing makes {want} of {have}")
    if have == want:
        return Way("same")
    nothing = Cut(-1)
    one, other = (lay if isinstance(lay, Cut) else nothing for lay in (have, want))
    whole = size if one.dim >= 0 else None
    orders = (one.order, other.order, one.every, other.every)
    return Way(_name(have, want), one.dim, other.dim, whole, one.parts, other.parts, *orders)


def _name(have: Lay, want: Lay) -> Name:
    if isinstance(have, Cut):
        return "all_to_all" if isinstance(want, Cut) else "all_gather" if want is WHOLE else "placed"
    if isinstance(want, Cut):
        return "reduce_scatter" if have is PARTIAL else "cut"
    return "all_reduce" if have is PARTIAL else "share"


def moved(tensor: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
    """`tensor` in its new layout."""
    return _MOVES[by.name](tensor, axis, by)


def returned(gradient: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
    """The gradient of a converted value as its maker wants it."""
    return moved(gradient, axis, by)


def _placed(tensor: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
    size = tensor.shape[by.dim] * axis.degree if by.size is None else by.size
    made = tensor.new_zeros((*tensor.shape[: by.dim], size, *tensor.shape[by.dim + 1 :]))
    first = 0
    for start, end in ranges(by.have, size, axis.degree, axis.rank):
        made.narrow(by.dim, start, end - start).copy_(tensor.narrow(by.dim, first, end - start))
        first += end - start
    return made


def _exchanged(tensor: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
    move = axis.recut if by.dim == by.to else axis.swap
    return move(tensor, by.have, by.want, by.size)


_MOVES: dict[Name, Callable[[torch.Tensor, Axis, Way], torch.Tensor]] = {
    "same": lambda tensor, axis, by: tensor,
    "all_reduce": lambda tensor, axis, by: axis.all_reduce(tensor),
    "reduce_scatter": lambda tensor, axis, by: axis.reduce_scatter(tensor, by.want),
    "all_gather": lambda tensor, axis, by: axis.all_gather(tensor, by.have, by.size),
    "all_to_all": _exchanged,
    "cut": lambda tensor, axis, by: axis.own(tensor, by.want),
    "placed": _placed,
    "share": lambda tensor, axis, by: tensor if axis.rank == 0 else torch.zeros_like(tensor),
}


def _named(name: Name) -> Callable[..., torch.Tensor]:
    """The function that stands in graphs under the name of its way."""

    def convert(x: torch.Tensor, axis: Axis, way: Way, *, gradient: Way) -> torch.Tensor:
        return with_gradient(x, lambda value: moved(value, axis, way), lambda value: returned(value, axis, gradient))

    convert.__name__ = convert.__qualname__ = name
    return convert


CONVERSIONS: dict[Name, Callable[..., torch.Tensor]] = {name: _named(name) for name in _MOVES}
