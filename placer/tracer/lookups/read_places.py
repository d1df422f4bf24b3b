"""What calls give that take a number which was read of a tensor for a place: `table[int(best)]`, `roll(h, -int(lag))`.

What a place picks is gathered, and so a copy where torch gives a view: nothing may be written into it (`Readings`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Gives the tensor of the number that stands for a place, () and int64; raises ReadError where there is none.
Number = Callable[[Any], Tensor]
Copied = Callable[[Tensor, Tensor], None]


class Places:
    """number: of what was read. copied: takes note of a copy in place of a view of a whole."""

    def __init__(self, number: Number, copied: Copied) -> None:
        self._number, self._copied = number, copied

    def select(self, whole: Tensor, dim: int, index: Any) -> Tensor:
        """`whole.select(dim, index)`."""
        place, size = self._number(index), whole.shape[dim]
        made = whole.index_select(dim, torch.where(place < 0, place + size, place).reshape(1))
        self._copied(made, whole)
        return made.squeeze(dim)

    def getitem(self, whole: Tensor, places: Any) -> Tensor:
        """`whole[places]`, of which others are numbers and slices."""
        given = places if isinstance(places, tuple) else (places,)
        read = [not _is_plain(one) for one in given]
        found = whole[tuple(slice(None) if place else one for one, place in zip(given, read, strict=True))]
        left = [number for number, one in enumerate(given) if type(one) is not int]
        cut = next((number for number in left if given[number] is ...), len(given))
        for at, number in reversed(list(enumerate(left))):
            if read[number]:
                found = self.select(found, at if number < cut else at - len(left) + found.dim(), given[number])
        return found

    def roll(self, whole: Tensor, shifts: Any, dims: int) -> Tensor:
        """`whole.roll(shifts, dims)` along one dim."""
        size = whole.shape[dims]
        places = (torch.arange(size, device=whole.device) - self._number(shifts)) % size
        return whole.index_select(dims, places)


def _is_plain(one: object) -> bool:
    parts = (one.start, one.stop, one.step) if isinstance(one, slice) else (one,)
    return all(part is None or part is ... or type(part) is int for part in parts)
