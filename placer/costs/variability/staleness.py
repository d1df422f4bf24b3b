"""Ranks that may run ahead of each other by some steps, as in `stale` training: what a step takes in the long run.

    C_r(t) = B_r(t) + X_r(t)                            rank r has computed step t, begun at B_r(t), drawn X_r(t)
    D(t)   = max(max over r of C_r(t), D(t - 1)) + c    its gradients are summed, c seconds, one sum after the other
    B_r(t + 1) = max(C_r(t), D(t - S))                  the update of step t uses those of S steps before

S = 0 is the synchronous step. The recurrence has no closed form; it is played for `STEPS` steps with draws from one
seed, so that the same ranks give the same seconds, and says the standard error that this leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from placer.costs.variability.step_times import Array
from placer.costs.variability.waiting import Crowd

# Steps that are played: their number is seen in the standard error, which is told (`PlayedSteps`).
STEPS = 20_000
# Steps until ranks are as far apart as they will be; not counted.
_WARM_UP = 2_000
_BATCHES = 20
# Steps drawn at once.
_DRAWN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSteps:
    """Seconds of a step in the long run, and the standard error of that."""

    seconds: float
    error: float


def stale_steps(crowd: Crowd, staleness: int, communication: float = 0.0, seed: int = 0) -> PlayedSteps:
    """Seconds of a step whose update is `staleness` steps late, each sum taking `communication` seconds."""
    played = summed_at(_drawn(crowd, np.random.default_rng(seed)), staleness, communication)
    summed = np.fromiter(played, float)[_WARM_UP:]
    batches = np.diff(summed[:: len(summed) // _BATCHES]) / (len(summed) // _BATCHES)
    return PlayedSteps(
        seconds=float((summed[-1] - summed[0]) / (len(summed) - 1)),
        error=float(batches.std(ddof=1) / np.sqrt(len(batches))),
    )


def steady_seconds(computation: float, staleness: int, communication: float = 0.0) -> float:
    """Seconds of such a step where the slowest rank computes for as long in every step.

    Nothing is faster than that computation, than sums one after the other, and than S + 1 steps within the seconds of
    a computation and the sum that follows it.
    """
    return max(computation, communication, (computation + communication) / (staleness + 1))


def summed_at(drawn: Iterable[Array], staleness: int, communication: float = 0.0) -> Iterator[float]:
    """D(0), D(1), ... (seconds) where `drawn` has the seconds of all ranks for each step."""
    begun, last, late = np.zeros(()), 0.0, deque[float]()
    for seconds in drawn:
        computed = begun + seconds
        last = max(float(computed.max()), last) + communication
        late.append(last)
        begun = np.maximum(computed, late.popleft()) if len(late) > staleness else computed
        yield last


def _drawn(crowd: Crowd, generator: np.random.Generator) -> Iterator[Array]:
    for _ in range((_WARM_UP + STEPS) // _DRAWN):
        yield from np.hstack([times.drawn(generator, (_DRAWN, ranks)) for times, ranks in crowd])
