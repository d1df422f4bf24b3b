"""Dropout by masks that are handed in: the one thing of a step that the model does not say by itself.

Every call of torch's dropout, and of attention with dropout, takes the next mask: `values * mask / (1 - probability)`.
Entered only where something drops; all else runs as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Protocol
from unittest import mock

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from placer.errors import UsageError

Call = Callable[..., object]


_DROPOUT, _BELOW, _ATTENTION = functional.dropout, torch.dropout, functional.scaled_dot_product_attention


class MaskSource(Protocol):
    """Where masks come from."""

    @property
    def count(self) -> int:
        """Calls of dropout in a forward."""
        ...

    def mask(self, step: int, call: int, shape: tuple[int, ...], probability: float) -> torch.Tensor:
        """Which elements call number `call` of a step keeps."""
        ...


class MaskedDropout(TorchFunctionMode):
    """The dropout of one forward."""

    def __init__(self, masks: MaskSource, step: int) -> None:
        super().__init__()
        self._masks, self._step, self._calls = masks, step, 0

    def __torch_function__(
        self, func: Call, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        """Run `func`, or what stands for it, also where it is called from torch's own Python code."""
        own: dict[Call, Call] = {_DROPOUT: self._dropped, _BELOW: self._dropped_below, _ATTENTION: self._attended}
        if func in own:
            return own[func](*args, **(kwargs or {}))
        if not isinstance(func, FunctionType):
            return func(*args, **(kwargs or {}))
        with mock.patch.multiple(functional, dropout=self._dropped, scaled_dot_product_attention=self._attended):
            return func(*args, **(kwargs or {}))

    def require_all_used(self) -> None:
        """Raise UsageError where the model did not drop as often as it was expected to."""
        if self._calls != self._masks.count:
            raise UsageError(
                f"the model drops {self._calls} times in a step by itself, {self._masks.count} times as captured: "
                "masks cannot be given to both alike; turn dropout off to verify"
            )

    def _dropped(
        self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0.0:
            return input
        mask = self._masks.mask(self._step, self._calls, tuple(input.shape), p)
        self._calls += 1
        kept = input * mask.to(input.device) / (1.0 - p) if p < 1.0 else input * 0.0
        return input.copy_(kept) if inplace else kept

    def _dropped_below(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return self._dropped(input, p, train)

    def _attended(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if dropout_p == 0.0:
            return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~allowed, -math.inf)
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if hidden else scores + attn_mask
        return self._dropped(scores.softmax(-1), dropout_p) @ value
