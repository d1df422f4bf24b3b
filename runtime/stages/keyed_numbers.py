"""Random bits that depend on (seed, step, op, row of the global batch, element of the row) and on nothing else, so that
no layout changes them. A counter-based generator: 64 bits mixed as splitmix64 does (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

import math

import torch

# splitmix64's constants, as signed 64-bit numbers (torch has no unsigned product)
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_BITS = 31  # of the mixed number that are compared with a probability

# The key of what no row has alone is that of this row, which no batch reaches.
NO_ROW = 2**62


def row_keys(seed: int, step: int, first_row: int, rows: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """One int64 key for each of the rows first_row..first_row+rows-1 of the global batch in this step."""
    index = torch.arange(first_row, first_row + rows, dtype=torch.int64, device=device)
    return mixed(mixed(index + _scalar(seed)) + _scalar(step))


def keys_for(op: int, keys: torch.Tensor) -> torch.Tensor:
    """The keys of op number `op`."""
    return mixed(keys + _scalar(op))


def numbers(shape: torch.Size, op: int, keys: torch.Tensor) -> torch.Tensor:
    """64 random bits for each element of `shape`, in row-major order divided evenly among the rows of `keys`."""
    return mixed(keys_for(op, keys).unsqueeze(1) + steps(math.prod(shape) // keys.numel(), keys.device)).view(shape)


def steps(count: int, device: torch.device, stride: int = 1) -> torch.Tensor:
    """What is added to a row's key for each of `count` elements, `stride` of them apart."""
    return torch.arange(count, dtype=torch.int64, device=device) * _signed(stride * _GAMMA)


def least(probability: float) -> int:
    """The number from which on those of `above` are kept, where each is dropped with this probability."""
    number: int = round(probability * 2**_BITS)
    return number


def above(places: torch.Tensor, steps: torch.Tensor, least: int) -> torch.Tensor:
    """Which numbers at `places`, moved on by each of `steps`, are `least` or more."""
    bits = mixed(places.unsqueeze(-1) + steps)
    bits &= 2**_BITS - 1
    return bits >= least


def mixed(state: torch.Tensor) -> torch.Tensor:
    """splitmix64 of `state`, written over it: beside it there is one more number per element at a time."""
    state += _GAMMA
    state ^= _shifted(state, 30)
    state *= _FIRST
    state ^= _shifted(state, 27)
    state *= _SECOND
    state ^= _shifted(state, 31)
    return state


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift right: torch's own keeps the sign."""
    shifted: torch.Tensor = value >> bits
    shifted &= 2 ** (64 - bits) - 1
    return shifted


def _scalar(value: int) -> int:
    """`value` spread over 64 bits, so that neighbouring numbers give unrelated keys."""
    return _signed(value * (2**64 + _GAMMA))


def _signed(value: int) -> int:
    """`value` modulo 2^64 as a signed number."""
    wrapped = value % 2**64
    return wrapped - 2**64 if wrapped >= 2**63 else wrapped
