"""Placements for the least finish time: the best of all list schedulers, annealed, and again from CP-SAT's placement.

    1   every method of the table; the finish time of each by the one player of device queues
    2   annealing from the two best of them
    3   the relaxed program: its bound, and annealing from its placement, made for an order of its own

It ends when a placement reaches the bound, or the limits do: `pairs` are placements that are judged.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from placer.errors import Infeasible, UsageError
from placer.placement.device_queues import DeviceQueues
from placer.placement.legality import violations
from placer.placement.problem import BoundedPlacement, PlacementProblem
from placer.strategies.lists.finish_time.annealing import Annealing, Placed
from placer.strategies.lists.finish_time.relaxed import Relaxed, relaxed, simple_bound
from placer.strategies.lists.from_file import node_tasks
from placer.strategies.lists.methods import METHODS
from placer.strategies.lists.task_graph import TaskGraph
from placer.strategies.placement.limits import Limits

# Tries of one annealing: some seconds, fewer where a graph is large (tries times its tasks and edges).
MOST_TRIES, MOST_WORK = 20_000, 10_000_000
# Deterministic seconds of the relaxed program where nothing is asked for.
EFFORT = 8.0
# Of the seconds that are asked for the share of each of the first annealings; of those then left that of the program.
FIRST, PROVING = 0.25, 0.6
ROUNDING = 1e-9
SEED = 0


@dataclass
class _Effort:
    """What is left of the limits, and the best placement so far."""

    left: int
    until: float
    bound: float
    best: Placed | None = None

    @property
    def over(self) -> bool:
        """Whether it ends."""
        reached = self.best is not None and self.best.value <= self.bound * (1 + ROUNDING)
        return reached or self.left <= 0 or time.perf_counter() >= self.until

    def keep(self, found: Placed) -> None:
        """The better of the two."""
        if self.best is None or found.value < self.best.value:
            self.best = found


def finish_time(problem: PlacementProblem, limits: Limits) -> BoundedPlacement:
    """The best placement found and the bound proved."""
    tasks, queues, begun = node_tasks(problem, "makespan"), DeviceQueues(problem), time.perf_counter()
    seconds = math.inf if limits.seconds is None else limits.seconds
    effort = _Effort(
        left=3 * MOST_TRIES if limits.pairs is None else limits.pairs,
        until=begun + seconds,
        bound=simple_bound(tasks),
    )
    starts, notes = _starts(tasks, queues)
    for start in starts:
        effort.keep(start)
    if effort.best is None:
        starts = _by_program(problem, tasks, queues, limits, effort)
    if effort.best is None:
        return BoundedPlacement(placement=None, bound=effort.bound, notes=notes)
    annealing = Annealing(tasks, queues.finish, random.Random(SEED))
    for number, start in enumerate(starts[:2], 1):
        effort.until = begun + FIRST * number * seconds
        _anneal(annealing, tasks, start, effort)
    if not effort.over or limits.seconds is not None:
        proof = _proved(tasks, effort.best, limits, max(0.0, begun + seconds - time.perf_counter()))
        effort.bound, effort.until = max(effort.bound, proof.bound), begun + seconds
        if proof.placement is not None and not violations(problem, proof.placement, "makespan"):
            start = Placed(placement=proof.placement, value=queues.finish(proof.placement))
            effort.keep(start)
            _anneal(annealing, tasks, start, effort)
    return BoundedPlacement(placement=effort.best.placement, bound=min(effort.bound, effort.best.value), notes=notes)


def _by_program(
    problem: PlacementProblem, tasks: TaskGraph, queues: DeviceQueues, limits: Limits, effort: _Effort
) -> list[Placed]:
    """Where no method fits into the memories what the program finds among placements as slow as one op and message
    after the other."""
    longest = [max(each for each in own if math.isfinite(each)) for own in tasks.seconds if math.isfinite(min(own))]
    sent = [max(tasks.transfer(edge, a, b) for a in tasks.devices for b in tasks.devices) for edge in tasks.edges]
    slowest, spent = math.fsum((*longest, *sent)), limits.solver_seconds(EFFORT)
    proof = relaxed(tasks, None, slowest, effort=spent, seconds=limits.seconds)
    effort.bound = max(effort.bound, proof.bound)
    if proof.placement is None or violations(problem, proof.placement, "makespan"):
        return []
    effort.keep(Placed(placement=proof.placement, value=queues.finish(proof.placement)))
    assert effort.best is not None
    return [effort.best]


def _proved(tasks: TaskGraph, known: Placed, limits: Limits, left: float) -> Relaxed:
    """By the relaxed program: within a share of the seconds that are left, or the same every time."""
    if math.isfinite(left):
        return relaxed(tasks, known.placement, known.value, effort=limits.solver_seconds(left), seconds=left * PROVING)
    return relaxed(tasks, known.placement, known.value, effort=limits.solver_seconds(EFFORT), seconds=None)


def _starts(tasks: TaskGraph, queues: DeviceQueues) -> tuple[list[Placed], tuple[str, ...]]:
    """What each method places, the best first, and what each finish time is, in words."""
    found: dict[str, Placed] = {}
    for name, method in METHODS.items():
        try:
            placement = method(tasks)
        except UsageError:  # METIS is an extra
            continue
        if not isinstance(placement, Infeasible):
            found[name] = Placed(placement=placement, value=queues.finish(placement))
    told = ", ".join(f"{name} {placed.value:.6g}" for name, placed in found.items())
    starts = {placed.placement: placed for placed in sorted(found.values(), key=lambda placed: placed.value)}
    return list(starts.values()), ((f"begun from {told}",) if told else ())


def _anneal(annealing: Annealing, tasks: TaskGraph, start: Placed, effort: _Effort) -> None:
    tries = min(effort.left, MOST_TRIES, MOST_WORK // (tasks.count + len(tasks.edges)))
    if not effort.over and tries:
        effort.left -= tries
        begun = time.perf_counter()
        allowed = max(effort.until - begun, 1e-9)
        effort.keep(annealing.down(start, tries, lambda: (time.perf_counter() - begun) / allowed))
