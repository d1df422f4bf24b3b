"""What torch's own modules look up in the values of tensors, and needs no value to be right.

    nn.Transformer          whether a mask is the causal one: a hint for a faster kernel beside the mask itself
    torch.distributions     whether parameters and samples are valid
    gaussian_nll_loss       whether variances are negative

An export has no values. Eager training still checks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor, distributions
from torch.nn import functional
from torch.nn.modules import transformer


@contextlib.contextmanager
def values_unchecked() -> Iterator[None]:
    """In the body torch's modules ask for no value."""
    validates = distributions.Distribution._validate_args
    distributions.Distribution.set_default_validate_args(False)
    try:
        with (
            mock.patch.object(transformer, "_detect_is_causal_mask", _is_said_causal),
            mock.patch.object(functional, "gaussian_nll_loss", _gaussian_nll_loss),
        ):
            yield
    finally:
        distributions.Distribution.set_default_validate_args(validates)


def _is_said_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """(log v + (input - target)^2 / v) / 2 with v = max(var, eps), through which gradients go as if it were var."""
    spread = torch.full_like(input, var) if isinstance(var, float) else var
    if spread.shape != input.shape and spread.shape == input.shape[:-1]:
        spread = spread.unsqueeze(-1)
    one_for_all = len(spread.shape) == len(input.shape) and all(
        own in (size, 1) for own, size in zip(spread.shape, input.shape, strict=True)
    )
    if not one_for_all or reduction not in ("none", "mean", "sum"):
        raise ValueError(f"gaussian_nll_loss with var of {tuple(spread.shape)} and reduction {reduction!r}")
    held = spread + (spread.clamp(min=eps) - spread).detach()
    loss = 0.5 * (held.log() + (input - target) ** 2 / held)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
