"""Microbatches in flight: those a position keeps values of, as the schedule's own action lists have them.

`in_flight_peaks(schedule, positions, stages, microbatches)` counts them per stage at each peak of each position;
`microbatches_in_flight` says besides which of them come before the first backward ends, when there are no gradients:

    gpipe         all m forwards first; later, with gradients, m - 1 at most
    1f1b          p - position run ahead; later as many again, if there are more microbatches
    zero-bubble   likewise p of them; of position + 1 the weight part waits, so that what arrived for it is kept too
    interleaved   backwards of later turns come before forwards of earlier ones: gradients count as always there
    branched      as the lists of its stage graph have it (`in_flight_of`); gradients count as always there
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import gt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placer.plans.schedule import Action, looped, looped_warmup


class InFlight(NamedTuple):
    """Of one position: microbatches in flight before its first backward ends (0 where `later` has as many), per stage
    at each later peak, and those whose backward waits for its weight part."""

    first: int
    later: tuple[tuple[int, ...], ...]
    parted: int = 0


@lru_cache(maxsize=4096)
def microbatches_in_flight(schedule: str, positions: int, stages: int, microbatches: int) -> tuple[InFlight, ...]:
    """What each position has in flight."""
    found = in_flight_peaks(schedule, positions, stages, microbatches)
    if schedule == "interleaved":
        return tuple(InFlight(first=0, later=peaks) for peaks in found)
    return tuple(_lone(schedule, position, peaks[0][0], microbatches) for position, peaks in enumerate(found))


def in_flight_of(line: Sequence[Action], stages: Sequence[int]) -> InFlight:
    """What a position has in flight that holds `stages` and does the actions of `line`."""
    alive = dict.fromkeys(stages, 0)
    peaks = set()
    for stage, kind, _ in line:
        if kind == "F":
            alive[stage] += 1
            peaks.add(tuple(alive.values()))
        else:
            alive[stage] -= 1
    return InFlight(first=0, later=_largest(sorted(peaks)))


def _lone(schedule: str, position: int, most: int, microbatches: int) -> InFlight:
    """Of a position with one stage. The first one of a pipeline has no inputs whose gradients could come first."""
    parted = min(microbatches, position + 1) if schedule == "zero-bubble" and position else 0
    later = min(most, microbatches - 1)
    return InFlight(first=most if most > later else 0, later=((later,),), parted=parted)


@lru_cache(maxsize=4096)
def in_flight_peaks(
    schedule: str, positions: int, stages: int, microbatches: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Per position the peaks of microbatches in flight per local stage (without those that another exceeds)."""
    if schedule == "gpipe":
        return tuple(((microbatches,),) for _ in range(positions))
    if schedule == "1f1b":
        return tuple(((min(microbatches, positions - p),),) for p in range(positions))
    if schedule == "zero-bubble":
        # Position p runs positions - 1 - p forwards ahead, and frees nothing until the backward of microbatch p.
        return tuple(((min(microbatches, positions),),) for _ in range(positions))
    return _looped_peaks(positions, stages // positions, _enough(positions, microbatches))


def _enough(positions: int, microbatches: int) -> int:
    """The fewest microbatches with the same peaks: they repeat once the pipeline is full (a test compares the two)."""
    return min(microbatches, 2 * positions) if microbatches % positions == 0 else microbatches


def _looped_peaks(positions: int, turns: int, microbatches: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Per interleaved position the microbatches in flight per turn after each forward, without those another exceeds.

    After forward i of a position with a warmup of w, so many of each turn have gone forward less those of i - w
    backwards; one turn is one digit of a number, so that equal counts are found at once.
    """
    ahead, back = (_counted([turn for turn, _ in order], turns) for order in looped(positions, turns, microbatches))
    done, places = np.arange(len(ahead) - 1), []
    for position in range(positions):
        freed = np.maximum(0, done - looped_warmup(position, positions, turns, microbatches))
        counts = ahead[1:] - back[freed]
        base = counts.max() + 1
        digits = base ** np.arange(turns - 1, -1, -1)
        found = np.unique(counts @ digits)[:, None] // digits % base
        places.append(_largest(list(map(tuple, found.tolist()))))
    return tuple(places)


def _counted(turns: list[int], count: int) -> NDArray[np.int64]:
    """How many of each turn are among the first 0, 1, ... entries."""
    each = np.zeros((len(turns) + 1, count), dtype=np.int64)
    each[np.arange(1, len(turns) + 1), turns] = 1
    return each.cumsum(axis=0)


def _largest(found: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Those of different counts in ascending order that no other one exceeds; only a later one can."""
    kept: list[tuple[int, ...]] = []
    while found:
        most = found[-1]
        kept.append(most)
        found = [one for one in found if any(map(gt, one, most))]
    return tuple(reversed(kept))
