"""Seconds of a step of ranks whose seconds vary, for every way in which replicas keep together.

                   where ranks vary                                        where nothing varies, m the largest mean
    synchronous    expected maximum of one draw of each + communication    m + communication
    local, K       (that of the sum of K draws of each + averaging) / K    m + averaging / K
    stale, S       the recurrence of `staleness`                           its period, `steady_seconds`

Draws are independent; what delays all ranks alike (`shared`) adds no waiting and is part of the means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from placer.costs.variability.rank_file import UnsteadyRanks
from placer.costs.variability.ranks import Division, best_division, crowd_of, even_division, given_division, given_rows
from placer.costs.variability.staleness import stale_steps, steady_seconds
from placer.costs.variability.waiting import expected_maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsteadyStep:
    """A way of keeping together, the seconds of a step under it, and those where nothing varies; error: the standard
    error of the first where they are played, else 0."""

    training: str
    seconds: float
    steady: float
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Variability:
    """Of one set of ranks: a step where nothing varies, one for each synchrony, and rows given, by speed and best."""

    ranks: UnsteadyRanks
    steady: UnsteadyStep
    steps: tuple[UnsteadyStep, ...]
    given: Division
    even: Division
    best: Division

    def waiting(self, step: UnsteadyStep) -> float:
        """The share of a step that variability adds to it; what is played may come out shorter by its error."""
        return max(1 - step.steady / step.seconds, 0.0) if step.seconds else 0.0


def variability(
    ranks: UnsteadyRanks, average_every: Sequence[int] = (), staleness: Sequence[int] = (), seed: int = 0
) -> Variability:
    """Of `ranks` with the rows they were measured with, for these numbers of local and of stale training."""
    crowd = crowd_of(ranks.kinds, given_rows(ranks.kinds))
    given = given_division(ranks.kinds)
    largest = max(times.mean for times, _ in crowd)
    steady = UnsteadyStep(
        training="synchronous, nothing varies", seconds=largest + ranks.communication,
        steady=largest + ranks.communication,
    )  # fmt: skip
    steps = [replace(steady, training="synchronous", seconds=given.seconds + ranks.communication)]
    for every in average_every:
        together = expected_maximum(crowd, every) + ranks.averaging
        told = f"local, averaged every {every} step{'s' * (every != 1)}"
        alike = largest + ranks.averaging / every
        steps.append(UnsteadyStep(training=told, seconds=together / every, steady=alike))
    for late in staleness:
        played = stale_steps(crowd, late, ranks.communication, seed)
        told = f"stale, gradients {late} step{'s' * (late != 1)} late"
        alike = steady_seconds(largest, late, ranks.communication)
        steps.append(UnsteadyStep(training=told, seconds=played.seconds, steady=alike, error=played.error))
    return Variability(
        ranks=ranks,
        steady=steady,
        steps=tuple(steps),
        given=given,
        even=even_division(ranks.kinds),
        best=best_division(ranks.kinds),
    )
