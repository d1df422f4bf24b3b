"""Attention of a piece: causal rows that know where they stand, grouped heads with whole keys, dropout of the whole."""

from __future__ import annotations

import math

import torch

from placer.runtime.spmd.local_ops.calls import Given


def attention_rows(given: Given) -> torch.Tensor:
    """Causal attention of a piece of the queries: query i of the whole sees keys 0..i."""
    allowed = _causal(given)
    return given.replaced(5, "is_causal", False).replaced(3, "attn_mask", allowed).called()


def attention_heads(given: Given) -> torch.Tensor:
    """Grouped heads with whole keys and values: each query head's own key and value head is repeated for it."""
    key, value = (_of_heads(given, given.tensor(position)) for position in (1, 2))
    return given.replaced(1, "key", key).replaced(2, "value", value).called()


def attention_dropout(given: Given) -> torch.Tensor:
    """Attention of a piece with dropout: the scores are dropped by the piece of the whole op's mask.

    The mask is read off the op itself: of equal scores and an identity for values it gives the mask's factors.
    """
    query, key, value = (given.tensor(position) for position in range(3))
    query, key, value = (one.unsqueeze(0) if query.dim() == 3 else one for one in (query, key, value))
    key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scale = given.option(6, "scale", None)
    scores = query @ key.transpose(-2, -1) * (scale if isinstance(scale, float) else 1 / math.sqrt(query.shape[-1]))
    causal = given.option(5, "is_causal", False) is True
    mask = _causal(given) if causal else given.optional(3, "attn_mask")
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    dropped = scores.softmax(-1) * _factors(given, scores)
    return (dropped @ value).view(given.local.call.outputs[0].shape)


def _causal(given: Given) -> torch.Tensor:
    query, key = given.tensor(0), given.tensor(1)
    cut_rows = given.place("dim") == query.dim() - 2
    first = given.place("start") if cut_rows else 0
    rows = torch.arange(first, first + query.shape[-2], device=query.device).unsqueeze(1)
    return rows >= torch.arange(key.shape[-2], device=query.device)


def _of_heads(given: Given, keys: torch.Tensor) -> torch.Tensor:
    heads = torch.arange(given.place("start"), given.place("end"), device=keys.device)
    return keys.index_select(-3, heads * keys.shape[-3] // given.place("of"))


def _factors(given: Given, scores: torch.Tensor) -> torch.Tensor:
    """The rank's piece of the whole mask: 0, or 1 / (1 - probability)."""
    query, keys = given.tensor(0), scores.shape[-1]
    shape = list(query.shape)
    shape[given.place("dim")] = given.place("of")
    zeros = query.new_zeros([*shape[:-1], 1])
    identity = torch.eye(keys, dtype=query.dtype, device=query.device).expand(*shape[:-2], keys, keys)
    probability = given.number(4, "dropout_p", 0.0)
    uniform = given.function(zeros, identity[..., :1] * 0, identity, None, probability, False)
    assert isinstance(uniform, torch.Tensor)
    piece = uniform.narrow(given.place("dim"), given.place("start"), given.place("end") - given.place("start"))
    return (piece * keys).view(scores.shape)
