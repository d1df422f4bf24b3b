"""Faults of random numbers that are no dropout: their keys, what they are made into, what a second run draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from examples.parity.faults.fault import Fault, method, replaced
from examples.parity.faults.passes import of_the_first_step, of_the_next_row, other_keys
from placer.runtime.stages import draws, keyed_numbers, microbatch
from placer.runtime.stages.pass_context import PassContext

Real = Callable[..., Any]
Tensor = torch.Tensor


def _of_each_piece(real: Real, *given: object, **named: object) -> PassContext:
    """What has no rows takes the key of the first row at hand."""
    found: PassContext = real(*given, **named)
    return found if found.keys is None else replace(found, batch_key=found.keys[:1])


def _of_the_first_draw(real: Real, shape: torch.Size, number: int, keys: Tensor) -> Tensor:
    return real(shape, 0, keys)


def _of_neighbours(real: Real, shape: torch.Size, number: int, keys: Tensor) -> Tensor:
    made: Tensor = real(shape, number, keys)
    return made.roll(1, -1) if made.dim() else made


def _wider(real: Real, bits: Tensor) -> Tensor:
    return 1.1 * real(bits)


def _shifted(real: Real, bits: Tensor, *given: object) -> Tensor:
    return real(bits, *given) - 0.01


RANDOM, AGAIN = "random numbers", "random numbers, run again"
FAULTS = (
    Fault(name="noise by the key of the next row", subject=RANDOM,
          plant=lambda: replaced(keyed_numbers.row_keys, of_the_next_row)),
    Fault(name="noise the same in every step", subject=RANDOM,
          plant=lambda: replaced(keyed_numbers.row_keys, of_the_first_step)),
    Fault(name="a number of the batch drawn by each piece of it", subject=RANDOM,
          plant=lambda: replaced(microbatch._context, _of_each_piece)),
    Fault(name="noise the same at every draw", subject=RANDOM,
          plant=lambda: replaced(keyed_numbers.numbers, _of_the_first_draw)),
    Fault(name="noise of the neighbouring element", subject=RANDOM,
          plant=lambda: replaced(keyed_numbers.numbers, _of_neighbours)),
    Fault(name="normal numbers a tenth too wide", subject=RANDOM, plant=lambda: replaced(draws._normal, _wider)),
    Fault(name="uniform numbers a hundredth too small", subject=RANDOM,
          plant=lambda: replaced(draws._uniform, _shifted)),
    Fault(name="noise drawn anew where a block runs again", subject=AGAIN,
          plant=lambda: method(PassContext, "again", other_keys)),
)  # fmt: skip
