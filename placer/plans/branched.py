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
from functools import lru_cache

from placer.plans.schedule import UNITS, Action, Actions, prerequisites
from placer.plans.stage_graph import StageGraph


@lru_cache(maxsize=256)
def branched_actions(graph: StageGraph, microbatches: int) -> Actions:
    """The actions of every position in order."""
    order = _Order(graph, microbatches)
    order.run()
    return tuple(map(tuple, order.lines))


class _Order:
    """The lists while they are made: of each stage the next forward and backward, when everything done ended."""

    def __init__(self, graph: StageGraph, microbatches: int) -> None:
        self.graph, self.microbatches = graph, microbatches
        self.lines: list[list[Action]] = [[] for _ in range(graph.positions)]
        self._next = {(stage, kind): 0 for stage in range(len(graph.at)) for kind in ("F", "B")}
        self._done: set[Action] = set()
        self._stages = [[s for s, at in enumerate(graph.at) if at == p] for p in range(graph.positions)]
        self._ends: list[tuple[float, int, Action]] = []

    def run(self) -> None:
        """Until nothing is left."""
        busy, now = [False] * self.graph.positions, 0.0
        while True:
            for position, stages in enumerate(self._stages):
                action = None if busy[position] else self._best(stages)
                if action is not None:
                    busy[position] = True
                    self._begin(action, position, now)
            if not self._ends:
                return
            now = self._ends[0][0]
            while self._ends and self._ends[0][0] == now:
                _, position, action = heapq.heappop(self._ends)
                self._done.add(action)
                busy[position] = False

    def _begin(self, action: Action, position: int, now: float) -> None:
        self.lines[position].append(action)
        self._next[action.stage, action.kind] += 1
        heapq.heappush(self._ends, (now + self.graph.work[action.stage] * UNITS[action.kind], position, action))

    def _best(self, stages: list[int]) -> Action | None:
        """What to start now at a position of these stages."""
        backwards = [action for s in stages if (action := self._ready(s, "B")) is not None]
        ready = backwards or [action for s in stages if (action := self._ready(s, "F")) is not None]
        return min(ready, key=self._urgency, default=None)

    def _ready(self, stage: int, kind: str) -> Action | None:
        """The next forward or backward of a stage, if it may start."""
        microbatch = self._next[stage, kind]
        if microbatch == self.microbatches:
            return None
        if kind == "F" and microbatch - self._next[stage, "B"] > self.graph.depth[stage]:
            return None
        action = Action(stage, "F" if kind == "F" else "B", microbatch)
        return action if self._done.issuperset(prerequisites(action, self.graph)) else None

    def _urgency(self, action: Action) -> tuple[int, float, int]:
        """Smaller is sooner. A forward is urgent for what comes behind it, a backward for what lies before it."""
        left = self.graph.left[action.stage]
        return action.microbatch, -left if action.kind == "F" else left, action.stage
