"""Numbers that the runtime reads from tensors to know how many rows go where; fake tensors (a dry run) have none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor


def numbers(tensor: torch.Tensor, assumed: Sequence[int]) -> list[int]:
    """The values of a list of integers; `assumed` where it is fake."""
    if isinstance(tensor, FakeTensor):
        return list(assumed)
    return [int(value) for value in tensor.tolist()]
