"""Whether two tensors that stand for one have the same numbers."""

from __future__ import annotations

import torch


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same shape and the same numbers, whatever their types and devices; NaN is one of them."""
    if one.shape != other.shape:
        return False
    wide = torch.promote_types(one.dtype, other.dtype)  # holds the numbers of both
    first, second = one.to(wide), other.to(one.device, wide)
    return bool(((first == second) | ((first != first) & (second != second))).all())
