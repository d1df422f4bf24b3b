"""The masks of dropout that a plan's run uses, from their definition: what the judge is handed.

    keep(seed, step, call, row, element) = the low 31 bits of a number >= round(probability * 2^31)
    number = mix(mix(mix(mix(row + w(seed)) + w(step)) + w(call + 1)) + element * G),  w(v) = v * G,  all modulo 2^64

mix is splitmix64 (Steele et al., OOPSLA 2014), G its constant. Written down here a second time, by numpy's unsigned
numbers, so that masks of the runtime (`stages/dropout.py`) are held to what they are said to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.uint64]

_G, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MODULUS, _BITS = 2**64, 31
_NO_ROW = 2**62  # the row of what has no rows


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedMasks:
    """The masks of a seed for batches of `rows`. batched: for each call of a forward whether dim 0 has rows; others
    get the same mask whatever rows there are."""

    seed: int
    rows: int
    batched: tuple[bool, ...]

    @property
    def count(self) -> int:
        """Calls of dropout in a forward."""
        return len(self.batched)

    def mask(self, step: int, call: int, shape: tuple[int, ...], probability: float) -> torch.Tensor:
        """Which elements call number `call` of a step keeps."""
        by_row = call < self.count and self.batched[call]
        rows = np.arange(self.rows, dtype=np.uint64) if by_row else np.array([_NO_ROW], dtype=np.uint64)
        keys = _mixed(_mixed(rows + _wide(self.seed)) + _wide(step))
        elements = np.arange(math.prod(shape) // len(keys), dtype=np.uint64) * np.uint64(_G)
        numbers = _mixed(_mixed(keys + _wide(call + 1))[:, None] + elements[None, :])
        kept = (numbers & np.uint64(2**_BITS - 1)) >= np.uint64(round(probability * 2**_BITS))
        return torch.from_numpy(kept.reshape(shape))


def _wide(value: int) -> np.uint64:
    return np.uint64(value * _G % _MODULUS)


def _mixed(state: Numbers) -> Numbers:
    state = state + np.uint64(_G)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))
