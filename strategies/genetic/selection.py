"""Selection by DEAP: who survives under several aims, and who is beaten in none (NSGA-II, Deb et al., 2002).

    aims, all to be small   seconds of a step, bytes of the fullest device, devices

In: plans as a walk has seen them. Out: some of them, in order. Plans that hold too much come after all others, those
first that hold least too much. Nothing here is random: where DEAP would draw, another way is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deap import base, tools

from placer.strategies.moves.walk import Seen


class _Fitness(base.Fitness):  # type: ignore[misc]
    weights = (-1.0, -1.0, -1.0)


@dataclass(eq=False)
class _Individual:
    """A plan as DEAP wants it."""

    seen: Seen
    fitness: _Fitness = field(init=False)

    def __post_init__(self) -> None:
        self.fitness = _Fitness(aims(self.seen))


def aims(seen: Seen) -> tuple[float, float, float]:
    """Seconds of a step, bytes of the fullest device, devices."""
    return seen.seconds, float(seen.score.peak), float(seen.devices)


def survivors(plans: Sequence[Seen], count: int) -> list[Seen]:
    """So many of the plans: front after front, of the last those that stand apart; then the ones that do not fit."""
    legal = [_Individual(seen) for seen in plans if seen.legal]
    chosen = tools.selNSGA2(legal, min(count, len(legal))) if legal else []
    rest = sorted(seen for seen in plans if not seen.legal)
    return [*(one.seen for one in chosen), *rest][:count]


def front(plans: Sequence[Seen]) -> list[Seen]:
    """Those legal plans that no other is better than in one aim and no worse in the others, the fastest first."""
    by_aims = {aims(seen): seen for seen in sorted(plans, reverse=True) if seen.legal}
    legal = [_Individual(seen) for seen in by_aims.values()]
    found = tools.sortNondominated(legal, len(legal), first_front_only=True)[0] if legal else []
    return sorted(one.seen for one in found)
