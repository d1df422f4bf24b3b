"""How many neighbouring plans are evaluated a second: what `placer bench evaluate` prints.

A walk by the table of moves from the best baseline: each neighbour is repaired and scored, a legal one is gone on from,
and after `STEPS` of them the walk begins anew. Before the clock runs `WARM` plans are looked at, so that what is done
once for a model (the costs under its layouts) is not counted. Seconds are the processor's, moves and repairs among
them; a move that leads to no new plan costs seconds and counts for nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from random import Random

from placer.errors import UsageError
from placer.search.problem import Problem
from placer.strategies.moves.table import drawn, kinds, moved
from placer.strategies.moves.walk import Seen, Walk

WARM, STEPS = 500, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpeed:
    """The plans that one kind of moves led to, and the seconds that took."""

    name: str
    plans: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Plans a second on one core; 0 where the moves led to none."""
        return self.plans / self.seconds if self.plans else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Plans evaluated from one of so many positions, kind by kind of moves; `legal` of them."""

    blocks: int
    devices: int
    positions: int
    legal: int
    kinds: tuple[KindSpeed, ...]

    @property
    def plans(self) -> int:
        """Plans evaluated."""
        return sum(kind.plans for kind in self.kinds)

    @property
    def seconds(self) -> float:
        """Seconds of the processor."""
        return sum(kind.seconds for kind in self.kinds)

    @property
    def per_second(self) -> float:
        """Plans a second on one core."""
        return self.plans / self.seconds if self.plans else 0.0


def evaluation_speed(problem: Problem, plans: int) -> Speed:
    """Of so many neighbouring plans of `problem`, whose budget does not count. Raises UsageError where pins contradict
    each other, no baseline fits or there are hardly any plans."""
    walk = Walk(replace(problem, budget=10**9, until=None))
    seeds = [seed for seed in walk.seeds() if seed.legal]
    if not seeds:
        raise UsageError(f"no baseline of {problem.graph.name} fits on {problem.cluster.name}; give larger machines")
    rng = Random(problem.seed)
    _walked(walk, seeds[0], WARM, rng)
    found = _walked(walk, seeds[0], plans, rng) if not walk.over else None
    if found is None:
        raise UsageError(
            f"{problem.graph.name} on {problem.cluster.name} has hardly more than {walk.evaluations} plans, too few to "
            "measure a speed on; give more rows, blocks or devices"
        )
    return found


def _walked(walk: Walk, start: Seen, plans: int, rng: Random) -> Speed:
    at, steps, legal = start, 0, 0
    counts, seconds = Counter[str](), Counter[str]()
    end = walk.evaluations + plans
    while walk.evaluations < end and not walk.over:
        before, began = walk.evaluations, time.process_time()
        name = drawn(kinds(walk.around, at.plan), rng, {})
        found = walk.tried(moved(walk.around, at.plan, name, rng))
        seconds[name] += time.process_time() - began  # type: ignore[assignment]
        if walk.evaluations == before:
            continue
        counts[name] += 1
        if found is not None and found.legal:
            at, steps, legal = found, steps + 1, legal + 1
        if steps == STEPS:
            at, steps = start, 0
    return Speed(
        blocks=len(start.plan.graph.blocks), devices=walk.problem.cluster.size, positions=start.plan.positions,
        legal=legal, kinds=tuple(KindSpeed(name=name, plans=counts[name], seconds=seconds[name]) for name in seconds),
    )  # fmt: skip
