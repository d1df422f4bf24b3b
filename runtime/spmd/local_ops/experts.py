"""Products of experts on a rank: of its experts among all rows, or of its rows at the experts' ranks.

    own rows --to--> rows at the ranks of their experts, sorted by expert --product--> --from--> own rows

The experts of a rank are its piece of them in their order over the ranks (`LocalOp.order`; without one their own).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from placer.rules.layouts import even, piece
from placer.runtime.spmd.axis import numbers
from placer.runtime.spmd.collectives import exchanged
from placer.runtime.spmd.local_ops.calls import Given


def experts(given: Given) -> torch.Tensor:
    """All rows are here, sorted by expert: those of the rank's experts are computed, the others are zero."""
    x, counts = given.tensor(0), _counts(given)
    start, end = given.place("start"), given.place("end")
    rows = _by_place(given, counts, x.shape[0])
    own = counts[_order(given, counts)]
    known = numbers(own, even(x.shape[0], len(counts)))
    mine = rows[sum(known[:start]) : sum(known[:end])]
    sums = own[start:end].cumsum(0).to(given.tensor(2).dtype)
    made = given.replaced(0, "input", x[mine]).replaced(2, "offs", sums).called()
    return made.new_zeros((x.shape[0], made.shape[1])).index_copy(0, mine, made)


def experts_apart(given: Given) -> torch.Tensor:
    """The rank's rows, sorted by expert, go to the ranks of their experts, are sorted there, computed and sent back."""
    sent = _SentRows.of(given)
    return sent.back(_product(given, sent.there(given.tensor(0)), sent))


def experts_to(given: Given) -> torch.Tensor:
    """The rank's rows go to the ranks of their experts, are sorted there and computed, and stay."""
    sent = _SentRows.of(given)
    return _product(given, sent.there(given.tensor(0)), sent)


def experts_at(given: Given) -> torch.Tensor:
    """Rows that came are computed, and stay."""
    return _product(given, given.tensor(0), _SentRows.of(given))


def experts_from(given: Given) -> torch.Tensor:
    """Rows that came are computed and sent back."""
    sent = _SentRows.of(given)
    return sent.back(_product(given, given.tensor(0), sent))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SentRows:
    """How rows go: `rows` the rank's own in order of their experts' ranks where they come in another, `counts` of them
    to each rank; `received` by rank and expert here, `came` from each rank; `order` by expert of what came by rank."""

    given: Given
    rows: torch.Tensor
    counts: list[int]
    received: torch.Tensor
    came: list[int]
    order: torch.Tensor

    @staticmethod
    def of(given: Given) -> _SentRows:
        """Every rank tells each how many rows it has for each of that one's experts."""
        counts, axis = _counts(given), given.axis
        placed = counts[_order(given, counts)]
        bounds = [piece(len(counts), axis.degree, rank) for rank in range(axis.degree)]
        received = axis.all_to_all(placed, [end - start for start, end in bounds])[0].view(axis.degree, -1)
        known = numbers(placed, even(given.tensor(0).shape[0], len(counts)))
        sent = [sum(known[start:end]) for start, end in bounds]
        came = numbers(received.sum(1), [sent[axis.rank]] * axis.degree)
        which = torch.arange(received.shape[1], device=received.device).repeat(received.shape[0])
        return _SentRows(
            given=given,
            rows=_by_place(given, counts, sum(known)) if given.local.order else counts[:0],
            counts=sent,
            received=received,
            came=came,
            order=which.repeat_interleave(received.flatten(), output_size=sum(came)).argsort(stable=True),
        )

    def there(self, x: torch.Tensor) -> torch.Tensor:
        """The rank's rows to the ranks of their experts; what came here, sorted by expert."""
        own = x[self.rows] if self.given.local.order else x
        return exchanged(own, self.counts, self.given.axis)[self.order]

    def back(self, made: torch.Tensor) -> torch.Tensor:
        """What came here to where it came from; the rank's own in their order."""
        own = exchanged(made[_inverse(self.order)], self.came, self.given.axis)
        return own[_inverse(self.rows)] if self.given.local.order else own


def _product(given: Given, rows: torch.Tensor, sent: _SentRows) -> torch.Tensor:
    sums = sent.received.sum(0).cumsum(0).to(given.tensor(2).dtype)
    return given.replaced(0, "input", rows).replaced(2, "offs", sums).called()


def _counts(given: Given) -> torch.Tensor:
    """Rows of each expert."""
    offsets = given.tensor(2)
    return torch.diff(offsets, prepend=offsets.new_zeros(1))


def _order(given: Given, counts: torch.Tensor) -> torch.Tensor:
    """The experts rank after rank."""
    return torch.tensor(given.local.order or range(len(counts)), device=counts.device)


def _by_place(given: Given, counts: torch.Tensor, size: int) -> torch.Tensor:
    """The `size` rows, which come sorted by expert, in the order of their experts' ranks."""
    place = _inverse(_order(given, counts))
    return place.repeat_interleave(counts, output_size=size).argsort(stable=True)


def _inverse(order: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(order)
    made[order] = torch.arange(len(order), device=order.device)
    return made
