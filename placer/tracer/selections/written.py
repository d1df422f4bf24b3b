"""Selections written back to the rows of a table that they are of, as the table where its mask says so."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from placer.tracer.selections.selected import Rows, is_selected, refused
from placer.tracer.selections.shapes import places_of

Name = Callable[[Any], Hashable]


def written(table: Tensor, index: Any, given: Any, name: Name) -> None:
    """`table[index] = given`, one of which is selected. Raises SelectionError where they are not of the same rows."""
    table.copy_(where_taken(table, index, given, name))


def where_taken(table: Tensor, index: Any, given: Any, name: Name) -> Tensor:
    """`table` with what is `given` in the rows of a mask, or at the places of one; name: of masks. Raises
    SelectionError."""
    rows = _rows(index, given, name) if is_mask(index) else places_of(index if isinstance(index, tuple) else (index,))
    if rows is None or tuple(table.shape[: len(rows.shape)]) != rows.shape:
        refused("a write to rows of which it is not known which they are")
    mask = rows.mask.view(*rows.shape, *(1,) * (table.ndim - len(rows.shape)))
    if not is_selected(given):
        if isinstance(given, Tensor) and given.ndim > table.ndim - len(rows.shape):
            refused("a tensor of rows written to selected rows")  # one without is the same for all
        return torch.where(mask, torch.as_tensor(given, dtype=table.dtype, device=table.device), table)
    of_rows = given.rows.name == rows.name and given.values.shape[1:] == table.shape[len(rows.shape) :]
    if not of_rows or given.dtype != table.dtype:
        refused("a selection written to rows of which it is not known that they are the same")
    return torch.where(mask, given.values.view(table.shape), table)


def is_mask(one: Any) -> bool:
    """Whether it is a plain tensor of booleans, of one dim or more."""
    return isinstance(one, Tensor) and one.dtype == torch.bool and one.ndim > 0


def _rows(mask: Tensor, given: Any, name: Name) -> Rows | None:
    """The rows of what is given where they are those that `mask` takes."""
    return given.rows if is_selected(given) and given.rows.name == (name(mask), tuple(mask.shape)) else None
