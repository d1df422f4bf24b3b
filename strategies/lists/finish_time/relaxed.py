"""A lower bound of the finish time: heads and tails by small programs, then a program of the whole graph.

Tasks that are short beside the finish time are folded (`contraction`), which leaves programs that can be proved; the
placement found gives them the device of the neighbour that sends or reads most.
"""

from __future__ import annotations

import heapq
import math
import os
from dataclasses import dataclass

from placer.strategies.lists.finish_time.contraction import contracted, short_tasks
from placer.strategies.lists.finish_time.program import Program
from placer.strategies.lists.finish_time.windows import Clock, Narrowing, ways
from placer.strategies.lists.task_graph import TaskGraph

# Workers of different kinds at once, of which one proves and others find.
WORKERS = 3
# Larger programs (tasks times devices) are not begun.
MOST_CELLS = 3_000
# No program is begun for less than this share of the bound.
CLOSE = 1e-4
# Of the finish time that is known so much is short.
SHORT = 0.002
# Of the effort for heads and tails.
WINDOWS = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """The bound, and a device for every task where the program found any order in time."""

    bound: float
    placement: tuple[int, ...] | None = None


def simple_bound(tasks: TaskGraph) -> float:
    """The longest way by the fastest seconds of each task, and the whole work over all devices."""
    return max(ways(tasks).bound, math.fsum(map(min, tasks.seconds)) / len(tasks.devices))


def relaxed(
    tasks: TaskGraph, known: tuple[int, ...] | None, value: float, *, effort: float, seconds: float | None
) -> Relaxed:
    """What CP-SAT proves and finds within `effort` (deterministic seconds) from a placement of a known finish time, or
    where none is known, of those that take at most `value`. An infinite bound: there is none."""
    bound, least = simple_bound(tasks), SHORT * value
    short = short_tasks(tasks, least)
    part = contracted(tasks, frozenset(range(tasks.count)), short, least)
    cells = len(part.tasks) * len(tasks.devices)
    if not 0 < cells <= MOST_CELLS or value <= bound * (1 + CLOSE) or effort <= 0 or seconds == 0:
        return Relaxed(bound=bound)
    narrowing = Narrowing(tasks, value, short, least)
    clock = Clock.of(WINDOWS * effort, None if seconds is None else WINDOWS * seconds)
    narrowing.narrow(frozenset(part.tasks), clock)
    bound = max(bound, narrowing.windows.bound)
    program = Program(tasks, part, value, narrowing.windows)
    if known is not None:
        program.hint(known)
    workers = 1 if seconds is None else max(WORKERS, os.cpu_count() or 1)
    proof = program.solve((1 - WINDOWS) * effort, None if seconds is None else (1 - WINDOWS) * seconds, workers)
    return Relaxed(
        bound=max(bound, proof.bound if known is None else min(value, proof.bound)),
        placement=None if proof.homes is None else _unfolded(tasks, proof.homes),
    )


def _unfolded(tasks: TaskGraph, homes: dict[int, int]) -> tuple[int, ...]:
    """The folded tasks too, the one with the longest message to a task that has a device first."""
    found, waiting = dict(homes), [(-math.inf, task, 0) for task in sorted(homes)]
    while waiting:
        _, task, device = heapq.heappop(waiting)
        device = found.setdefault(task, device)
        for edge in (*tasks.reads[task], *tasks.feeds[task]):
            other = edge.source if edge.target == task else edge.target
            if other not in found:
                heapq.heappush(waiting, (-tasks.mean_transfer(edge), other, device))
    return tuple(found.get(task, 0) for task in range(tasks.count))
