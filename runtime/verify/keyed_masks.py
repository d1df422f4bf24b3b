"""The masks of dropout and the random numbers that a plan's run uses, from their definition: what the judge is handed.

    keep(seed, step, call, row, element) = the low 31 bits of a number >= round(probability * 2^31)
    number = mix(mix(mix(mix(row + w(seed)) + w(step)) + w(call + 1)) + element * G),  w(v) = v * G,  all modulo 2^64

mix is splitmix64 (Steele et al., OOPSLA 2014), G its constant. Written down here a second time, by numpy's unsigned
numbers, so that masks of the runtime (`stages/keyed_numbers.py`) are held to what they are said to be. Other draws take
the same numbers at their own calls, which begin at 2^32: a uniform number of the highest 53 bits (24, 11 or 8 for types
of 32 and 16 bits), a normal one by Box and Muller, whose angle is of mix(number).
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
_FIRST_DRAW = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keyed:
    """Numbers of a seed for batches of `rows`. dims: for each call of a forward the dim that has the rows, which come
    first in its numbers; where none has (None) they are the same whatever rows there are."""

    seed: int
    rows: int
    dims: tuple[int | None, ...]

    @property
    def count(self) -> int:
        """Calls in a forward."""
        return len(self.dims)

    def _numbers(self, step: int, call: int, first: int, shape: tuple[int, ...]) -> Numbers:
        """64 bits for each element of `shape`, which are divided evenly among the rows; calls are numbered from
        `first`."""
        dim = self.dims[call] if call < self.count else None
        every = np.array([_NO_ROW], dtype=np.uint64) if dim is None else np.arange(self.rows, dtype=np.uint64)
        keys = _mixed(_mixed(every + _wide(self.seed)) + _wide(step))
        elements = np.arange(math.prod(shape) // len(keys), dtype=np.uint64) * np.uint64(_G)
        made = _mixed(_mixed(keys + _wide(first + call))[:, None] + elements[None, :])
        if dim is None:
            return made.reshape(shape)
        return np.moveaxis(made.reshape(shape[dim], *shape[:dim], *shape[dim + 1 :]), 0, dim)


class KeyedMasks(_Keyed):
    """The masks of dropout."""

    def mask(self, step: int, call: int, shape: tuple[int, ...], probability: float) -> torch.Tensor:
        """Which elements call number `call` of a step keeps."""
        numbers = self._numbers(step, call, 1, shape) & np.uint64(2**_BITS - 1)
        return torch.from_numpy(np.asarray(numbers >= np.uint64(round(probability * 2**_BITS))))


class KeyedDraws(_Keyed):
    """Other random numbers."""

    def uniform(self, step: int, call: int, shape: tuple[int, ...], bits: int) -> torch.Tensor:
        """From 0 to below 1, of so many bits."""
        return torch.from_numpy(np.asarray((self._bits(step, call, shape) >> np.uint64(64 - bits)) / 2.0**bits))

    def positive(self, step: int, call: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Between 0 and 1, never either."""
        return torch.from_numpy(np.asarray(_positive(self._bits(step, call, shape))))

    def normal(self, step: int, call: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Of mean 0 and variance 1."""
        bits = self._bits(step, call, shape)
        radius, angle = np.sqrt(-2.0 * np.log(_positive(bits))), 2.0 * np.pi * _positive(_mixed(bits))
        return torch.from_numpy(np.asarray(radius * np.cos(angle)))

    def whole(self, step: int, call: int, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
        """Whole numbers from `low` to below `high`."""
        bits = self._bits(step, call, shape) & np.uint64(2**62 - 1)
        return torch.from_numpy(np.asarray((bits % np.uint64(high - low)).astype(np.int64) + low))

    def _bits(self, step: int, call: int, shape: tuple[int, ...]) -> Numbers:
        return self._numbers(step, call, _FIRST_DRAW, shape)


def _positive(bits: Numbers) -> npt.NDArray[np.float64]:
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


def _wide(value: int) -> np.uint64:
    return np.uint64(value * _G % _MODULUS)


@np.errstate(over="ignore")  # numpy warns where a single number goes round, as it is meant to
def _mixed(state: Numbers) -> Numbers:
    state = state + np.uint64(_G)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))
