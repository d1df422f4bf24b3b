"""Targets of a CTC loss that a model joins end to end, as many as are no padding: while it is exported they stay rows.

    targets.masked_select(mask), mask.sum(-1)  --ctc_loss-->  each row's, in their order and to its front, and the same
    lengths

How many are joined the values alone say, which an export has not, and what is joined is no row's own any more. torch
takes both forms and gives the same losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

NAMES = ("log_probs", "targets", "input_lengths", "target_lengths")
# What keeps a mask's numbers.
CASTS = frozenset({"long", "int", "to", "type"})
SELECTED = frozenset({"masked_select", "__getitem__"})


class PaddedTargets(TorchFunctionMode):
    """While it is entered, joined targets whose lengths count the mask that chose them are given as padded rows."""

    def __init__(self) -> None:
        super().__init__()
        self._joined = WeakIdKeyDictionary()
        self._counted = WeakIdKeyDictionary()
        self._masks = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls it, and notes what it makes of a mask."""
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "ctc_loss":
            args, named = self._of_rows(args, named)
        result = func(*args, **named)
        if isinstance(result, Tensor) and args and isinstance(args[0], Tensor):
            self._note(name, result, args[0], args[1] if len(args) > 1 else named.get("mask", named.get("dim")))
        return result

    def _of_rows(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a loss is given, its targets as padded rows where they are known to be joined from such."""
        given = {**dict(zip(NAMES, args, strict=False)), **named}
        rows = self._rows(given.get("targets"), given.get("target_lengths"))
        if rows is None:
            return args, named
        return ((args[0], rows, *args[2:]), named) if len(args) > 1 else (args, {**named, "targets": rows})

    def _note(self, name: str, result: Tensor, first: Tensor, second: Any) -> None:
        known = self._mask(first)
        if name in SELECTED and _chooses(second, first):
            self._joined[result] = _Kept(result, first, second)
        elif result.is_floating_point() or not known.unwritten:
            return
        elif name in CASTS and (first.dtype == torch.bool or first in self._masks):
            self._masks[result] = _Kept(result, *known.tensors)
        elif name == "sum" and first.ndim == 2 and result.ndim == 1 and second in (1, -1, (1,), (-1,), [1], [-1]):
            self._counted[result] = _Kept(result, *known.tensors)

    def _mask(self, numbers: Tensor) -> _Kept:
        """The mask that numbers were cast from, where they were, behind what it was cast to on the way."""
        known: _Kept = self._masks.get(numbers, _Kept(numbers))  # type: ignore[no-untyped-call]  # torch does not type it
        return known

    def _rows(self, targets: object, lengths: object) -> Tensor | None:
        """The targets as padded rows; None where they are not known to be joined from such."""
        if targets not in self._joined or lengths not in self._counted:
            return None
        joined, counted = self._joined[targets], self._counted[lengths]
        whole, mask = joined.tensors[1:]
        if counted.tensors[-1] is not mask or not (joined.unwritten and counted.unwritten):
            return None
        rows: Tensor = whole.gather(-1, torch.argsort((~mask).long(), dim=-1, stable=True))
        return rows


class _Kept:
    """Tensors, each made of the next ones, and whether none was written to since."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self._versions = [tensor._version for tensor in tensors]

    @property
    def unwritten(self) -> bool:
        """Whether all hold what they held."""
        return self._versions == [tensor._version for tensor in self.tensors]


def _chooses(mask: object, of: Tensor) -> bool:
    """Whether it is a mask of the entries of a table of whole numbers."""
    return (
        isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == of.shape and of.ndim == 2
        and not of.is_floating_point()
    )  # fmt: skip
