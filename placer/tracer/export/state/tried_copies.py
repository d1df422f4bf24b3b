"""A copy of a part of a model to try it with, and what it is run on."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

# Half-width of the random weights that a part is tried with.
SCALE = 0.02


def tried_copy(module: nn.Module) -> nn.Module:
    """A copy with small random weights on the CPU."""
    made = copy.copy(module)
    memo: dict[int, object] = {id(t): _filled(t) for t in (*module.parameters(), *module.buffers())}
    forward = vars(module).pop("forward")
    try:
        made = copy.deepcopy(module, memo)
    finally:
        object.__setattr__(module, "forward", forward)
    return made


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)
    if made.is_floating_point():
        made.uniform_(-SCALE, SCALE)
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def numbers(shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """Normal ones, or 0 and 1 in turns."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return (torch.arange(math.prod(shape)) % 2).reshape(shape).to(dtype)


def others(shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """As `numbers`, of the other sign and larger, or two times 0 and two times 1 in turns."""
    if dtype.is_floating_point or dtype.is_complex:
        return -3 * numbers(shape, dtype=dtype)
    return (torch.arange(math.prod(shape)) // 2 % 2).reshape(shape).to(dtype)


def twos(shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """Twice what `torch.ones` gives: ones are lengths, say, that may be neither 0 nor more than there is."""
    return 2 * torch.ones(shape, dtype=dtype)
