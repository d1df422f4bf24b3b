"""Batch norm by groups of rows, where a setting says that its statistics are not those of the whole batch.

groups of a call: (first row, end, whether the running statistics take it), one after another
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from placer.errors import UsageError

Call = Callable[..., object]
Groups = tuple[tuple[int, int, bool], ...]
NormRows = tuple[Groups, ...]


class PiecewiseNorms(TorchFunctionMode):
    """The batch norms of one forward; `rows` has the groups of each call. The batch counts once, not by its groups."""

    def __init__(self, rows: NormRows) -> None:
        super().__init__()
        self._rows, self._calls = rows, 0

    def __torch_function__(
        self, func: Call, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        """Run `func`; batch norm group by group."""
        if func is functional.batch_norm:
            return self._normed(*args, **(kwargs or {}))  # type: ignore[arg-type]
        return func(*args, **(kwargs or {}))

    def _normed(
        self,
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        groups = self._groups()
        if not training:
            return functional.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
        each, rest = divmod(input.shape[0], groups[-1][1])
        if rest:
            raise UsageError(
                f"a batch norm gets {input.shape[0]} rows of a batch of {groups[-1][1]}: it cannot be verified by rows"
            )
        made = []
        for first, end, moves in groups:
            mean, var = (one if one is None or moves else one.clone() for one in (running_mean, running_var))
            piece = input[first * each : end * each]
            made.append(functional.batch_norm(piece, mean, var, weight, bias, True, momentum, eps))
        return torch.cat(made)

    def _groups(self) -> Groups:
        if self._calls >= len(self._rows):
            raise UsageError(
                f"the model calls batch norm more often than the {len(self._rows)} times it was captured with"
            )
        self._calls += 1
        return self._rows[self._calls - 1]
