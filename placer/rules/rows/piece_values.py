"""How a value of a piece of the batch stands to that of the whole batch.

Cut(dim)       the piece has the rows of its own, in dim `dim`
WHOLE          every piece has the same
PARTIAL        the sum over the pieces is it
RowNumbers     the numbers of rows, which a piece counts from its own first row: good for indexing its rows only
Mixed          rows of one piece are not enough to tell
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from placer.rules.calls import MARKED_ROWS
from placer.rules.layouts import Cut, Lay


class RowNumbers(NamedTuple):
    """0, step, 2 * step ... below `of` along dim `dim`: where each row begins in a dim of `of` entries."""

    dim: int
    of: int
    step: int = 1


class Mixed(NamedTuple):
    """Not to be had from the rows of a piece; why: the op, its line, and what it does with rows."""

    why: str


Standing: TypeAlias = "Lay | RowNumbers | Mixed"


class PieceValue(NamedTuple):
    """How a value stands to that of the whole batch. given: it follows from the batch and keyed random numbers alone
    (no trained parameter), so that its sum over all pieces can be had before the step."""

    lay: Standing
    given: bool = False


def row_dims(shape: tuple[int, ...]) -> list[int]:
    """The dims that grow with the rows, of a shape at MARKED_ROWS rows."""
    return [dim for dim, size in enumerate(shape) if size and size % MARKED_ROWS == 0]


def cut_dim(lay: Standing) -> int | None:
    """The dim that holds the rows of a piece, None where none does."""
    return lay.dim if isinstance(lay, Cut | RowNumbers) else None
