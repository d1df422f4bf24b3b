"""Prefix sums that are exact: the difference of any two is the very sum of what lies between them.

Each number is rounded to a multiple of the power of two that leaves the total 52 bits (a change of it by less than
1e-15 of the total), and sums of multiples are multiples: nothing is rounded again. So alike runs of blocks take equal
seconds wherever they lie in a model, and one of them is priced for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from math import frexp, ldexp

# Of a float64 after its first, by definition (IEEE 754).
BITS = 52


def exact_sums(each: Iterable[float]) -> tuple[float, ...]:
    """0, then the sums of the first one, two, ... of numbers that are not negative, on a grid."""
    values = tuple(each)
    _, exponent = frexp(sum(values))
    grid = BITS - exponent
    # Most blocks of a model are alike: each value is rounded once.
    rounded = {value: ldexp(round(ldexp(value, grid)), -grid) for value in set(values)}
    return tuple(accumulate(map(rounded.__getitem__, values), initial=0.0))
