"""Inputs that are the same in every step: how they are described, and the values that a graph keeps of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from placer.errors import UsageError
from placer.graph import Input, Values

# Numbers of a constant: a plan.json holds each, and what values unroll becomes ops of the graph.
MOST = 2**14


@dataclass(frozen=True, slots=True)
class Constant:
    """An input whose values are the same in every step, which forward may read (`for t, h, w in grid.tolist()`).

    values: a tensor, a number or nested lists of numbers, with the batch's rows where the input goes by rows; without a
    type of their own whole numbers are int64. A run takes these values alone and refuses a batch with others.
    """

    values: object

    def tensor(self, name: str) -> Tensor:
        """The values of input `name`, numbers that have no type yet in as many digits as they have.

        Raises UsageError for what are no finite numbers, and for too many of them.
        """
        try:
            found = self.values if isinstance(self.values, Tensor) else _tensor(self.values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"the constant {name} of the batch is no tensor of numbers ({error}); give a tensor, a number or "
                "nested lists, as in Constant([[1, 4, 4], [1, 4, 4]])"
            ) from None
        if found.device.type == "meta" or found.is_complex() or found.numel() > MOST:
            raise UsageError(
                f"the constant {name} of the batch has {found.numel()} numbers of {found.dtype} on {found.device}; "
                f"give at most {MOST} real ones with values"
            )
        if not all(map(math.isfinite, found.detach().reshape(-1).tolist())):
            raise UsageError(f"the constant {name} of the batch holds what is no finite number; leave it an input")
        return found.detach().cpu()

    def dtype(self, name: str) -> torch.dtype:
        """The type that the input has."""
        found = self.tensor(name)
        own = isinstance(self.values, Tensor) or not found.is_floating_point()
        return found.dtype if own else torch.get_default_dtype()


def _tensor(values: object) -> Tensor:
    found = torch.tensor(values)
    return torch.tensor(values, dtype=torch.float64) if found.is_floating_point() else found


def values_of(tensor: Tensor) -> Values:
    """The numbers of a constant, one after another; truths are 0 and 1."""
    found = tensor.reshape(-1).tolist()
    return tuple(map(float, found)) if tensor.is_floating_point() else tuple(map(int, found))


def tensor_of(values: Values, shape: tuple[int, ...], dtype: torch.dtype, rows: int | None = None) -> Tensor:
    """The constant that has these numbers, on the CPU; rows: where its rows are alike, how many of them."""
    found = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else torch.int64).to(dtype)
    if rows is None:
        return found.view(shape)
    found = found.view(-1, *shape[1:])
    return found if found.shape[0] == rows else found[:1].expand(rows, *shape[1:]).clone()


def constant_of(entry: Input, rows: int, dtype: torch.dtype) -> Tensor | None:
    """The values that a batch of `rows` rows must have for an input; None where any will do."""
    if entry.values is None:
        return None
    return tensor_of(entry.values, entry.tensor.shape_at(rows), dtype, rows if entry.tensor.batched else None)


def require_constant(entry: Input, given: Tensor, rows: int) -> None:
    """Raise UsageError where a batch has other values than the plan has of a constant: they are in the captured ops."""
    wanted = constant_of(entry, rows, given.dtype)
    if wanted is None or given.is_meta or torch.equal(given.detach().cpu(), wanted):
        return
    where = tuple((given.detach().cpu() != wanted).nonzero()[0].tolist())
    raise UsageError(
        f"input {entry.name} is a constant of the plan, whose values forward may read, and this batch has another: "
        f"{given[where].item()} in place of {wanted[where].item()}{f' at {list(where)}' if where else ''}; give "
        "batches with the plan's values, or plan again with those of this one"
    )
