"""Dropout whose masks depend on (seed, step, op, row of the global batch, element of the row) and on nothing else, so
that no layout changes them. A counter-based generator: 64 bits mixed as splitmix64 does (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

import math

import torch

from placer.runtime.stages.one_kernel import one_kernel
from placer.runtime.stages.pass_context import PassContext

# splitmix64's constants, as signed 64-bit numbers (torch has no unsigned product)
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_BITS = 31  # of the mixed number that are compared with the probability

Place = dict[str, int]  # dim, start, end and of: where a piece of a dim stands


# The key of what no row has alone is that of this row, which no batch reaches.
NO_ROW = 2**62


def row_keys(seed: int, step: int, first_row: int, rows: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """One int64 key for each of the rows first_row..first_row+rows-1 of the global batch in this step."""
    index = torch.arange(first_row, first_row + rows, dtype=torch.int64, device=device)
    return mixed(mixed(index + _scalar(seed)) + _scalar(step))


def dropout(
    values: torch.Tensor,
    probability: float,
    op: int,
    rows: int | None,
    mode: PassContext,
    places: tuple[Place, ...] = (),
) -> torch.Tensor:
    """`values` with elements dropped by the mask of dropout number `op`; all of them in evaluation.

    rows: the dim that is a whole number of entries per row; values without one get the same mask in every layout. A
    piece, which stands at `places` in the whole, takes its piece of the whole's mask.
    """
    if not mode.training or mode.keys is None or probability == 0.0 or values.numel() == 0:
        return values
    if probability == 1.0:
        return values * 0.0
    sizes = list(values.shape)
    for place in places:
        sizes[place["dim"]] = place["of"]
    if rows is not None:  # the mask is made with them in front
        sizes.insert(0, sizes.pop(rows))
    keep = kept(torch.Size(sizes), probability, op, mode.keys_of(rows is not None))
    keep = keep if rows is None else keep.movedim(0, rows)
    for place in places:
        keep = keep.narrow(place["dim"], place["start"], place["end"] - place["start"])
    return values * keep / (1.0 - probability)


def kept(shape: torch.Size, probability: float, op: int, keys: torch.Tensor) -> torch.Tensor:
    """The boolean mask of `shape`, its elements in row-major order divided evenly among the rows of `keys`."""
    rows, elements = _places(shape, op + 1, keys)
    return one_kernel(_above)(rows, elements, round(probability * 2**_BITS)).view(shape)


def _above(rows: torch.Tensor, elements: torch.Tensor, least: int) -> torch.Tensor:
    """Which of the numbers are `least` or more."""
    bits = mixed(rows + elements * _GAMMA)
    bits &= 2**_BITS - 1
    return bits >= least


def numbers(shape: torch.Size, op: int, keys: torch.Tensor) -> torch.Tensor:
    """64 random bits for each element of `shape`, in row-major order divided evenly among the rows of `keys`."""
    rows, elements = _places(shape, op, keys)
    return mixed(rows + elements * _GAMMA).view(shape)


def _places(shape: torch.Size, op: int, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A key per row for `op`, and the places of a row's elements."""
    per_row = math.prod(shape) // keys.numel()
    elements = torch.arange(per_row, dtype=torch.int64, device=keys.device)
    return mixed(keys + _scalar(op)).unsqueeze(1), elements


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    probability: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
    op: int,
    batched: bool,
    mode: PassContext,
    places: tuple[Place, ...] = (),
) -> torch.Tensor:
    """Scaled dot-product attention whose dropout is `dropout`; in evaluation and without dropout torch's own kernel.

    batched: whether dim 0 of the scores holds batch rows, which learned queries and keys have none of.
    """
    if not mode.training or mode.keys is None or probability == 0.0:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped
        )
    if grouped:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    scores = scores.softmax(-1)  # nobody holds them as they were while the mask is made
    return dropout(scores, probability, op, 0 if batched else None, mode, places) @ value


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
    """`value` spread over 64 bits and made signed, so that neighbouring numbers give unrelated keys."""
    wrapped = (value * (2**64 + _GAMMA)) % 2**64
    return wrapped - 2**64 if wrapped >= 2**63 else wrapped
