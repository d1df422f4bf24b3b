"""Dropout by masks that are handed in: the one thing of a step that the model does not say by itself.

Every call of torch's dropout, and of attention with dropout, takes the next mask: `values * mask / (1 - probability)`;
so does what each layer of a recurrent module with dropout gives to the next, rows in front, and, of dropout of
channels, one element for each. Entered only where something drops; all else runs as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, Protocol
from unittest import mock

import torch
from torch import _VF
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from placer.errors import UsageError

Call = Callable[..., object]


_DROPOUT, _BELOW, _ATTENTION = functional.dropout, torch.dropout, functional.scaled_dot_product_attention
_CHANNELS, _CHANNELS_IN_PLACE = torch.feature_dropout, torch.feature_dropout_
# How torch.nn calls recurrent functions of sequences that are not packed.
_OF_A_RECURRENT_CALL = 9
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


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
        own: dict[Call, Call] = {
            _DROPOUT: self._dropped, _BELOW: self._dropped_below, _ATTENTION: self._attended,
            _CHANNELS: self._channels_dropped, _CHANNELS_IN_PLACE: partial(self._channels_dropped, inplace=True),
        }  # fmt: skip
        if func in own:
            return own[func](*args, **(kwargs or {}))
        if not isinstance(func, FunctionType):
            if getattr(func, "__name__", "") in _RECURRENT and len(args) == _OF_A_RECURRENT_CALL:
                return self._layer_by_layer(func, args)
            return func(*args, **(kwargs or {}))
        with (
            mock.patch.multiple(functional, dropout=self._dropped, scaled_dot_product_attention=self._attended),
            mock.patch.multiple(_VF, feature_dropout=own[_CHANNELS], feature_dropout_=own[_CHANNELS_IN_PLACE]),
        ):
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

    def _channels_dropped(self, input: torch.Tensor, p: float, train: bool, *, inplace: bool = False) -> torch.Tensor:
        if not train or p == 0.0:
            return input
        ones = torch.ones(*input.shape[:2], *(1 for _ in input.shape[2:]), dtype=input.dtype, device=input.device)
        kept = input * self._dropped(ones, p)
        return input.copy_(kept) if inplace else kept

    def _layer_by_layer(self, func: Callable[..., Any], args: tuple[Any, ...]) -> object:
        """A recurrent function of some layers as calls of one layer each, what lies between them dropped."""
        values, states, weights, biases, layers, chance, training, both_ways, batch_first = args
        if layers == 1 or not chance or not training or not isinstance(weights, list | tuple):
            return func(*args)
        per_layer, ways, last = len(weights) // layers, 1 + bool(both_ways), list[Any]()
        for layer in range(layers):
            if layer:
                rows_first = values if batch_first else values.transpose(0, 1)
                rows_first = self._dropped(rows_first, chance)
                values = rows_first if batch_first else rows_first.transpose(0, 1)
            own = [state[ways * layer : ways * (layer + 1)] for state in _listed(states)]
            own_weights = weights[per_layer * layer : per_layer * (layer + 1)]
            given = own if isinstance(states, list | tuple) else own[0]
            values, *left = func(values, given, own_weights, biases, 1, 0.0, training, both_ways, batch_first)
            last.append(left)
        return (values, *(torch.cat(every) for every in zip(*last, strict=True)))

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
        kind = query.device.type
        query, key, value, attn_mask = _as_autocast_gives(kind, query, key, value, attn_mask)
        with torch.autocast(kind, enabled=False):
            scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
            return self._dropped(_weights(scores, attn_mask, is_causal), dropout_p) @ value


def _as_autocast_gives(kind: str, *given: Any) -> list[Any]:
    """What torch's attention reads, which is all that autocast casts of it."""
    if not torch.is_autocast_enabled(kind):
        return list(given)
    narrow = torch.get_autocast_dtype(kind)
    casts = [one is not None and one.is_floating_point() and one.dtype != torch.float64 for one in given]
    return [one.to(narrow) if cast else one for one, cast in zip(given, casts, strict=True)]


def _weights(scores: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor:
    """Of the keys; all zero where a query may look at none."""
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _listed(states: Any) -> list[torch.Tensor]:
    return list(states) if isinstance(states, list | tuple) else [states]
