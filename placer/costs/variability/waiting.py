"""The seconds after which the last of several ranks has computed one step, or several steps each on its own.

    expected maximum = integral from 0 of (1 - product over ranks of F_r(x)) dx,    F_r(x) = P(sum of k draws of r <= x)

(David, Nagaraja, Order Statistics, 2003, section 2.1.) Distributions are put on points of one lattice so that their
means stay: a value between two points is divided over both, what lies in a cell goes to its two ends. The integral is
then a sum, and sums of k draws are k-th powers of Fourier transforms. Nothing is drawn at random. As the maximum is
convex the value is, if anything, too large, for each step by less than a cell: 2^-13 of the widest draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from placer.costs.variability.step_times import Array, StepTimes
from placer.errors import UsageError

#: Distributions, and of how many ranks each.
Crowd: TypeAlias = Sequence[tuple[StepTimes, int]]

# A resolution, held to enumerations in `tests/costs/test_variability.py`.
# Cells over the widest draw; fewer where many draws are summed, so that transforms stay small.
_CELLS = 2**13
_MOST_POINTS = 2**21
# Draws of which the lattice still tells the sums apart.
MOST_DRAWS = 2**12


def expected_maximum(crowd: Crowd, draws: int = 1) -> float:
    """Seconds until all ranks have computed `draws` steps each, expected. Raises UsageError for too many."""
    if not 1 <= draws <= MOST_DRAWS:
        raise UsageError(f"{draws} steps between two averages were asked for; give 1 to {MOST_DRAWS}")
    most = max(times.most for times, _ in crowd)
    if most == 0:
        return 0.0
    cells = min(_CELLS, _MOST_POINTS // draws)
    step, length = most / cells, cells * draws + 1
    all_below: Array = np.ones(length)
    for times, ranks in crowd:
        all_below *= _sum_below(_masses(times, step, cells), draws, length) ** ranks
    return float(step * (1 - all_below).sum())


def _sum_below(masses: Array, draws: int, length: int) -> Array:
    """The distribution function of a sum of draws on the lattice."""
    if draws > 1:
        size = 1 << (length - 1).bit_length()
        masses = np.fft.irfft(np.fft.rfft(masses, size) ** draws, size)[:length]
    below: Array = np.cumsum(np.maximum(masses, 0.0))
    shares: Array = below / below[-1]
    return shares


def _masses(times: StepTimes, step: float, cells: int) -> Array:
    """Probabilities of the lattice's points 0, step, ..., cells * step."""
    made: Array = np.zeros(cells + 1)
    if times.atoms:
        places = np.minimum(np.array(times.atoms) / step, cells)
        low = np.minimum(places.astype(int), cells - 1)
        upper = places - low
        np.add.at(made, low, (1 - upper) / len(times.atoms))
        np.add.at(made, low + 1, upper / len(times.atoms))
        return made
    below = times.below(np.linspace(0.0, step * cells, cells + 1))
    inside = np.diff(below) / 2
    made[:-1] += inside
    made[1:] += inside
    made[0] += below[0]
    return made
