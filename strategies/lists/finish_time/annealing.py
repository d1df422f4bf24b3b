"""Simulated annealing (Kirkpatrick et al., Science 220, 1983) over the device of each group of tasks.

moves         a group to any device; to the device of a neighbour; with its neighbours to one device; two of the
              longest change places
temperature   falls from `WARM` of the start's finish time to `COLD` of that, by the same share with every try, or
              faster where the time is short
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placer.strategies.lists.schedule import MEMORY_ROUNDING
from placer.strategies.lists.task_graph import TaskGraph

WARM, COLD = 0.03, 1e-3
# How often a neighbour goes along.
ALONG = 0.7
# Of the longest groups so many change places with each other.
LONGEST = 0.2

Homes = list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement of the tasks and its finish time."""

    placement: tuple[int, ...]
    value: float


class Annealing:
    """`judge` says what a placement is worth."""

    def __init__(self, tasks: TaskGraph, judge: Callable[[Sequence[int]], float], rng: random.Random) -> None:
        self._judge, self._rng = judge, rng
        numbers = {group: index for index, group in enumerate(tasks.groups)}
        self._group = [numbers[group] for group in tasks.group]
        self._members = list(tasks.groups.values())
        near: list[set[int]] = [set() for _ in self._members]
        for edge in tasks.edges:
            a, b = self._group[edge.source], self._group[edge.target]
            near[a].add(b)
            near[b].add(a)
        self._near = [sorted(own - {index}) for index, own in enumerate(near)]
        self._allowed = [
            frozenset(d for d in tasks.devices if all(math.isfinite(tasks.seconds[task][d]) for task in own))
            for own in self._members
        ]
        self._size = [math.fsum(tasks.size[task] for task in own) for own in self._members]
        self._memory = [memory * (1 + MEMORY_ROUNDING) for memory in tasks.memory]
        self._bound = math.fsum(self._size) > min(self._memory)
        seconds = [math.fsum(tasks.mean_seconds[task] for task in own) for own in self._members]
        order = sorted(range(len(seconds)), key=lambda group: (-seconds[group], group))
        self._longest = order[: max(2, math.ceil(LONGEST * len(order)))]

    def down(self, start: Placed, tries: int, passed: Callable[[], float]) -> Placed:
        """The best placement seen in so many tries, or until the share of its time that has `passed` is 1."""
        warm, random_ = WARM * start.value, self._rng.random
        homes = [start.placement[own[0]] for own in self._members]
        now, best, late = start.value, start, 0.0
        for number in range(tries):
            late = passed() if number % 16 == 0 else late
            if late >= 1:
                break
            moved = self._moved(homes)
            if moved is None:
                continue
            placement = [moved[group] for group in self._group]
            value = self._judge(placement)
            heat = warm * COLD ** max(late, number / tries)
            if value <= now or (heat > 0 and random_() < math.exp((now - value) / heat)):
                homes, now = moved, value
                if value < best.value:
                    best = Placed(placement=tuple(placement), value=value)
        return best

    def _moved(self, homes: Homes) -> Homes | None:
        """A neighbour; None where it is no other, or not allowed."""
        rng, found = self._rng, homes.copy()
        group, device = rng.randrange(len(homes)), rng.randrange(len(self._memory))
        kind = rng.randrange(4)
        if kind == 0:
            found[group] = device
        elif kind == 1 and self._near[group]:
            found[group] = homes[rng.choice(self._near[group])]
        elif kind == 2:
            for other in (group, *(near for near in self._near[group] if rng.random() < ALONG)):
                found[other] = device
        elif len(self._longest) > 1:
            one, other = rng.sample(self._longest, 2)
            found[one], found[other] = homes[other], homes[one]
        return found if found != homes and self._legal(found) else None

    def _legal(self, homes: Homes) -> bool:
        if not all(device in own for device, own in zip(homes, self._allowed, strict=True)):
            return False
        if self._bound:
            used = [0.0] * len(self._memory)
            for device, size in zip(homes, self._size, strict=True):
                used[device] += size
            return all(held <= memory for held, memory in zip(used, self._memory, strict=True))
        return True
