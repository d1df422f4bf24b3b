"""What an island is between two epochs: plans by their choices alone, so that an epoch begins in this process, in
another one and from a file with the same.

people    its population, in the order of their rank
front     those it has seen of which none is better than another in every aim
arrived   plans of the island before it, which it has not looked at yet
stale     turns without a faster plan
rests     whether it found nothing more to do; only a faster plan that arrives wakes it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from placer.io.bounds import Count, CountFromOne
from placer.plans.plan import Plan, ScheduleName, Stage
from placer.strategies.moves.neighbourhood import Neighbourhood
from placer.strategies.moves.walk import Seen, Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a plan says that another plan of its neighbourhood says otherwise."""

    stages: tuple[Stage, ...]
    schedule: ScheduleName
    microbatches: tuple[CountFromOne, ...]
    bucket_bytes: CountFromOne


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """One of several populations, as it is between two epochs."""

    people: tuple[Choices, ...] = ()
    front: tuple[Choices, ...] = ()
    arrived: tuple[Choices, ...] = ()
    stale: Count = 0
    rests: bool = False


def choices(plans: Iterable[Seen]) -> tuple[Choices, ...]:
    """What is kept of plans."""
    return tuple(_choices(seen.plan) for seen in plans)


def recalled(walk: Walk, kept: Iterable[Choices]) -> list[Seen]:
    """The plans of these choices, as `walk` sees them; they were counted when they were found."""
    return [seen for one in kept if (seen := walk.recalled(_plan(walk.around, one))) is not None]


def _choices(plan: Plan) -> Choices:
    return Choices(
        stages=plan.stages, schedule=plan.schedule, microbatches=plan.microbatches, bucket_bytes=plan.bucket_bytes
    )


def _plan(around: Neighbourhood, kept: Choices) -> Plan:
    return around.plan(
        stages=kept.stages, schedule=kept.schedule, microbatches=kept.microbatches, bucket_bytes=kept.bucket_bytes
    )
