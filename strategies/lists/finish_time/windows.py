"""Heads and tails: of each task the least seconds before it begins and from its begin to the finish, by small programs.

    head   how soon all that it waits for can have ended, as a program of its own
    tail   how soon all that waits for it can have ended, when nothing else is in the way

The smaller ones come first and are told to the larger ones. In any order they take next to no time; those that wait in
queues take much, and are asked only along the longest ways, where the part is small. The sum of a head and its tail is
a bound of the finish time (Carlier, EJOR 11, 1982, has them given; here they are proved).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from placer.strategies.lists.finish_time.contraction import contracted, far_from_long
from placer.strategies.lists.finish_time.program import Program, Windows
from placer.strategies.lists.task_graph import TaskGraph

# Deterministic seconds of each program at most.
IN_ANY_ORDER, QUEUED = 0.15, 1.0
# Of the longest head and tail so much makes a way one of the longest.
LONG = 0.98
# Tasks of a part whose queues are looked at.
MOST_QUEUED = 40


@dataclass
class Clock:
    """Deterministic seconds that are left, and the end by the clock."""

    effort: float
    until: float

    @classmethod
    def of(cls, effort: float, seconds: float | None) -> Clock:
        """From now on."""
        return cls(effort=effort, until=math.inf if seconds is None else time.perf_counter() + seconds)

    @property
    def seconds(self) -> float | None:
        """What is left by the clock; None without end."""
        return None if math.isinf(self.until) else max(0.0, self.until - time.perf_counter())

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.effort <= 0 or self.seconds == 0


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Of each task the bits of those before it and behind it."""

    before: list[int]
    behind: list[int]

    @classmethod
    def of(cls, tasks: TaskGraph) -> Reach:
        """Along the edges."""
        before, behind = [0] * tasks.count, [0] * tasks.count
        for task in tasks.order:
            for edge in tasks.reads[task]:
                before[task] |= before[edge.source] | 1 << edge.source
        for task in reversed(tasks.order):
            for edge in tasks.feeds[task]:
                behind[task] |= behind[edge.target] | 1 << edge.target
        return cls(before=before, behind=behind)


def ways(tasks: TaskGraph) -> Windows:
    """By the longest ways, with the fastest seconds of each task and no messages."""
    least = [min(own) for own in tasks.seconds]
    heads, tails = [0.0] * tasks.count, least.copy()
    for task in tasks.order:
        for edge in tasks.reads[task]:
            heads[task] = max(heads[task], heads[edge.source] + least[edge.source])
    for task in reversed(tasks.order):
        for edge in tasks.feeds[task]:
            tails[task] = max(tails[task], least[task] + tails[edge.target])
    return Windows(heads=heads, tails=tails)


class Narrowing:
    """Windows of schedules no longer than `value`; tasks in `short`, and messages of `least` seconds, are short."""

    def __init__(self, tasks: TaskGraph, value: float, short: frozenset[int], least: float) -> None:
        self._tasks, self._value, self._short, self._least = tasks, value, short, least
        self._reach = Reach.of(tasks)
        self._few = far_from_long(tasks, short, least)
        self._fastest = [min(own) for own in tasks.seconds]
        self.windows = ways(tasks)

    def narrow(self, kept: frozenset[int], clock: Clock) -> None:
        """In any order for all that stay of the whole graph, then queued along the longest ways."""
        for task, head in self._by_size(range(self._tasks.count)):
            if not self._follows(task, head, kept) and task in kept:
                self._one(task, head, clock, queued=False)
        longest = [task for task in kept if self._promise(task) >= LONG * self.windows.bound]
        for task, head in self._by_size(longest):
            self._one(task, head, clock, queued=True)

    @property
    def _long(self) -> list[int]:
        return [task for task in range(self._tasks.count) if task not in self._short]

    def _promise(self, task: int) -> float:
        return self.windows.heads[task] + self.windows.tails[task]

    def _by_size(self, some: Iterable[int]) -> list[tuple[int, bool]]:
        """Heads and tails of these, the smallest part first."""
        both = [(task, head) for task in some for head in (True, False)]
        return sorted(both, key=lambda each: (self._around(*each).bit_count(), each))

    def _around(self, task: int, head: bool) -> int:
        return self._reach.before[task] if head else self._reach.behind[task]

    def _follows(self, task: int, head: bool, kept: frozenset[int]) -> bool:
        """Take what is known of its neighbours; whether one of them that stays has all the others on its own way."""
        heads, tails, least = self.windows.heads, self.windows.tails, self._fastest
        around, alone = self._around(task, head), False
        for edge in self._tasks.reads[task] if head else self._tasks.feeds[task]:
            if head:
                heads[task] = max(heads[task], heads[edge.source] + least[edge.source])
            else:
                tails[task] = max(tails[task], least[task] + tails[edge.target])
            other = edge.source if head else edge.target
            alone |= other in kept and around == self._around(other, head) | 1 << other
        return alone

    def _one(self, task: int, head: bool, clock: Clock, *, queued: bool) -> None:
        if clock.over:
            return
        around = self._around(task, head)
        among = frozenset(i for i in range(self._tasks.count) if around >> i & 1) | {task}
        folded = (self._few if queued else self._short) - {task}
        part = contracted(self._tasks, among, folded, self._least)
        if len(part.tasks) <= 2 or (queued and len(part.tasks) > MOST_QUEUED):
            return
        seen = self.windows
        given = Windows(heads=seen.heads if head else [0.0] * self._tasks.count, tails=seen.tails)
        program = Program(self._tasks, part, self._value, given, last=task if head else None)
        if queued:
            program.queue(self._reach.behind, self._long)
        proof = program.solve(min(clock.effort, QUEUED if queued else IN_ANY_ORDER), clock.seconds)
        clock.effort -= proof.effort
        kept = seen.heads if head else seen.tails
        kept[task] = max(kept[task], min(proof.bound, self._value))
