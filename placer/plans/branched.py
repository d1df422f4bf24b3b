"""The order of `branched`: stages that are a graph, any number of them at a position.

List scheduling (Graham 1969) of the graph's own work, a backward taking twice its forward: whenever a position is free
it takes, of the actions that could start, a backward before a forward, then the earliest microbatch, then the stage
with most work to come. A stage keeps no more microbatches in flight than a pipeline as deep as the way behind it would
(`StageGraph.depth` + 1), so that a chain gets the order of 1f1b.

No position waits for ever: of the earliest microbatch that is not done some stage can always go on, since a stage that
holds nothing of earlier ones may take it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

from placer.plans.schedule import UNITS, Action, ActionKind, TimedActions
from placer.plans.stage_graph import StageGraph

_KINDS: Sequence[ActionKind] = ("F", "B")


@lru_cache(maxsize=256)
def branched_order(graph: StageGraph, microbatches: int) -> TimedActions:
    """The actions of every position in order, and when each begins and ends."""
    order = _Order(graph, microbatches)
    order.run()
    return TimedActions(actions=tuple(map(tuple, order.lines)), times=order.times)


class _Order:
    """The lists while they are made.

    A stage takes its microbatches in order: of each kind of action how many have `begun`, and how many there is all
    for that they read (`ready`), say which is next.
    """

    def __init__(self, graph: StageGraph, microbatches: int) -> None:
        count = len(graph.at)
        self.graph = graph
        self.lines: list[list[Action]] = [[] for _ in range(graph.positions)]
        self.times: dict[Action, tuple[float, float]] = {}
        self._stages = [[s for s, at in enumerate(graph.at) if at == p] for p in range(graph.positions)]
        self._begun = {kind: [0] * count for kind in _KINDS}
        self._done = {kind: [0] * count for kind in _KINDS}
        self._ready = {"F": [0 if reads else microbatches for reads in graph.reads], "B": [0] * count}
        self._readers, self._senders = _reversed(graph.reads), _reversed(graph.awaits)
        self._ends: list[tuple[float, int, Action]] = []

    def run(self) -> None:
        """Until nothing is left."""
        busy, now, stirred = [False] * len(self.lines), 0.0, set(range(len(self.lines)))
        while True:
            for position in stirred:
                if not busy[position] and (action := self._best(self._stages[position])) is not None:
                    busy[position] = True
                    self._begin(action, position, now)
            if not self._ends:
                return
            now, stirred = self._ends[0][0], set()
            while self._ends and self._ends[0][0] == now:
                _, position, action = heapq.heappop(self._ends)
                busy[position] = False
                stirred.update((position, *self._finished(action)))

    def _begin(self, action: Action, position: int, now: float) -> None:
        end = now + self.graph.work[action.stage] * UNITS[action.kind]
        self.lines[position].append(action)
        self.times[action] = now, end
        self._begun[action.kind][action.stage] += 1
        heapq.heappush(self._ends, (end, position, action))

    def _finished(self, action: Action) -> list[int]:
        """Note that an action is done; the positions of the stages that wait for it."""
        stage, graph = action.stage, self.graph
        self._done[action.kind][stage] += 1
        forwards, backwards = self._done["F"], self._done["B"]
        if action.kind == "F":
            for reader in self._readers[stage]:
                self._ready["F"][reader] = min([forwards[before] for before in graph.reads[reader]])
        for sender in (stage, *self._senders[stage]) if action.kind == "B" else (stage,):
            awaited = [backwards[after] for after in graph.awaits[sender]]
            self._ready["B"][sender] = min([forwards[sender], *awaited])
        return [graph.at[one] for one in (self._readers if action.kind == "F" else self._senders)[stage]]

    def _best(self, stages: list[int]) -> Action | None:
        """What to start now at a position of these stages; of forwards the one with most behind it, of backwards the
        one with least before it. A forward waits while enough is in flight."""
        backwards, forwards, left = self._begun["B"], self._begun["F"], self.graph.left
        ready = self._ready["B"]
        found = [(backwards[s], left[s], s) for s in stages if backwards[s] < ready[s]]
        if found:
            microbatch, _, stage = min(found)
            return Action(stage, "B", microbatch)
        ready, depth = self._ready["F"], self.graph.depth
        found = [
            (forwards[s], -left[s], s)
            for s in stages
            if forwards[s] < ready[s] and forwards[s] - backwards[s] <= depth[s]
        ]
        if found:
            microbatch, _, stage = min(found)
            return Action(stage, "F", microbatch)
        return None


def _reversed(ways: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of each stage those that have it among theirs."""
    found: list[list[int]] = [[] for _ in ways]
    for stage, others in enumerate(ways):
        for other in others:
            found[other].append(stage)
    return found
