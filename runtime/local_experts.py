"""Products of experts on a rank: of its experts among all rows, or of its rows at the experts' ranks."""

from __future__ import annotations

import torch
from torch.nn import functional

from placer.rules.layouts import piece
from placer.runtime.local_calls import Given
from placer.runtime.local_collectives import exchanged


def experts(given: Given) -> torch.Tensor:
    """All rows are here, sorted by expert: those of the rank's experts are computed, the others are zero."""
    x, offsets = given.tensor(0), given.tensor(2)
    start, end = given.place("start"), given.place("end")
    first = int(offsets[start - 1]) if start else 0
    last = int(offsets[end - 1])
    made = given.replaced(0, "input", x[first:last]).replaced(2, "offs", offsets[start:end] - first).called()
    return functional.pad(made, [0, 0, first, x.shape[0] - last])


def experts_apart(given: Given) -> torch.Tensor:
    """The rank's rows, sorted by expert, go to the ranks of their experts, are sorted there, computed and sent back."""
    x, offsets, axis = given.tensor(0), given.tensor(2), given.axis
    counts = torch.diff(offsets, prepend=offsets.new_zeros(1))
    bounds = [piece(len(counts), axis.degree, rank) for rank in range(axis.degree)]
    received = axis.all_to_all(counts, [end - start for start, end in bounds])[0].view(axis.degree, -1)
    rows = exchanged(x, [int(counts[start:end].sum()) for start, end in bounds], axis)
    order = _by_expert(received)
    sums = received.sum(0).cumsum(0).to(offsets.dtype)
    made = given.replaced(0, "input", rows[order]).replaced(2, "offs", sums).called()
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=x.device)
    return exchanged(made[back], received.sum(1).tolist(), axis)


def _by_expert(received: torch.Tensor) -> torch.Tensor:
    """Rows come by rank, then expert, `received[rank, expert]` of them: their order by expert."""
    which = torch.arange(received.shape[1], device=received.device).repeat(received.shape[0])
    return which.repeat_interleave(received.flatten()).argsort(stable=True)


def own_numbers(given: Given) -> torch.Tensor:
    """Row numbers of the whole, counted from the rank's first row."""
    return given.replaced(2, "values", given.tensor(2) - given.place("start")).called()
