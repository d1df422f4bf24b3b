"""FORMS: the named local ops of `placer.rules.splits.localise`, each a function of what a rank is `Given`.

The pieces are as the choice's states say, windows with the rows of their neighbours already in them. Collectives within
an op go through the `Axis`. Dropout is not among them: the runtime rewrites it wherever it drops (`graph_ops`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from placer.runtime.spmd.local_ops import experts, losses, positions, windows
from placer.runtime.spmd.local_ops.calls import Given

FORMS: dict[str, Callable[[Given], torch.Tensor]] = {
    "slice": positions.strided,
    "arange": positions.arange,
    "own_numbers": positions.own_numbers,
    "vocabulary": positions.vocabulary,
    "attention_rows": positions.attention_rows,
    "attention_heads": positions.attention_heads,
    "mean_share": losses.mean_share,
    "mean_loss": losses.mean_loss,
    "vocabulary_loss": losses.vocabulary_loss,
    "batch_norm": windows.batch_norm,
    "window": windows.window,
    "transposed_window": windows.transposed_window,
    "experts": experts.experts,
    "experts_apart": experts.experts_apart,
    "experts_to": experts.experts_to,
    "experts_at": experts.experts_at,
    "experts_from": experts.experts_from,
}

#: Those that talk to the other ranks, or ask tensors for numbers to know what to send.
TALKING = frozenset({
    "mean_loss", "vocabulary_loss", "batch_norm", "experts", "experts_apart", "experts_to", "experts_at", "experts_from"
})  # fmt: skip
