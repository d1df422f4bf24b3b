"""Ops that must know where the rank's piece stands in the whole."""

from __future__ import annotations

import torch

from placer.runtime.spmd.local_ops.calls import Given


def strided(given: Given) -> torch.Tensor:
    """Every step-th of the rank's rows."""
    everything = (slice(None),) * given.place("dim")
    return given.tensor(0)[(*everything, slice(None, None, given.place("step")))]


def arange(given: Given) -> torch.Tensor:
    """The rank's piece of a range."""
    return given.called()[given.place("start") : given.place("end")]


def own_numbers(given: Given) -> torch.Tensor:
    """Row numbers of the whole, counted from the rank's first row."""
    return given.replaced(2, "values", given.tensor(2) - given.place("start")).called()


def vocabulary(given: Given) -> torch.Tensor:
    """Rows of ids outside the rank's part of the table are zero."""
    table, ids = given.tensor(0), given.tensor(1) - given.place("start")
    mine = (ids >= 0) & (ids < table.shape[0])
    padding = int(given.number(2, "padding_idx", -1)) - given.place("start")
    local = given.replaced(1, "indices", torch.where(mine, ids, 0))
    rows = local.replaced(2, "padding_idx", padding if 0 <= padding < table.shape[0] else -1).called()
    return torch.where(mine.unsqueeze(-1), rows, 0.0)


def attention_rows(given: Given) -> torch.Tensor:
    """Causal attention of a piece of the queries: query i of the whole sees keys 0..i.

    With a mask no fused kernel of GPUs takes grouped keys: they are repeated for the queries that read them.
    """
    query, key = given.tensor(0), given.tensor(1)
    allowed = causal_mask(query, key, given.place("start") if given.place("dim") == query.dim() - 2 else 0)
    masked = given.replaced(5, "is_causal", False).replaced(3, "attn_mask", allowed)
    if query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        for position, name in ((1, "key"), (2, "value")):
            grouped = given.tensor(position)
            masked = masked.replaced(
                position, name, grouped.repeat_interleave(query.shape[-3] // grouped.shape[-3], dim=-3)
            )
    return masked.called()


def attention_heads(given: Given) -> torch.Tensor:
    """Grouped heads with whole keys and values: each query head's own key and value head is repeated for it."""
    key, value = (_of_heads(given, given.tensor(position)) for position in (1, 2))
    return given.replaced(1, "key", key).replaced(2, "value", value).called()


def causal_mask(query: torch.Tensor, key: torch.Tensor, first: int) -> torch.Tensor:
    """Which keys each query may see, of queries that begin with number `first` of the whole."""
    rows = torch.arange(first, first + query.shape[-2], device=query.device).unsqueeze(1)
    return rows >= torch.arange(key.shape[-2], device=query.device)


def _of_heads(given: Given, keys: torch.Tensor) -> torch.Tensor:
    heads = torch.arange(given.place("start"), given.place("end"), device=keys.device)
    return keys.index_select(-3, heads * keys.shape[-3] // given.place("of"))
