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

from placer.plans.schedule import UNITS, Action, ActionKind, Actions
from placer.plans.stage_graph import StageGraph

_KINDS: Sequence[ActionKind] = ("F", "B")


@lru_cache(maxsize=256)
def branched_actions(graph: StageGraph, microbatches: int) -> Actions:
    """The actions of every position in order."""
    order = _Order(graph, microbatches)
    order.run()
    return tuple(map(tuple, order.lines))


class _Order:
    """The lists while they are made: of each stage how many forwards and backwards have begun, and how many are done.

    It takes its microbatches in order, so that the number says which.
    """

    def __init__(self, graph: StageGraph, microbatches: int) -> None:
        self.graph, self.microbatches = graph, microbatches
        self.lines: list[list[Action]] = [[] for _ in range(graph.positions)]
        self._stages = [[s for s, at in enumerate(graph.at) if at == p] for p in range(graph.positions)]
        self._begun = {kind: [0] * len(graph.at) for kind in _KINDS}
        self._done = {kind: [0] * len(graph.at) for kind in _KINDS}
        self._ends: list[tuple[float, int, Action]] = []

    def run(self) -> None:
        """Until nothing is left."""
        free, now = list(range(self.graph.positions)), 0.0
        while True:
            for position in sorted(free):
                action = self._best(self._stages[position])
                if action is not None:
                    free.remove(position)
                    self._begin(action, position, now)
            if not self._ends:
                return
            now = self._ends[0][0]
            while self._ends and self._ends[0][0] == now:
                _, position, action = heapq.heappop(self._ends)
                self._done[action.kind][action.stage] += 1
                free.append(position)

    def _begin(self, action: Action, position: int, now: float) -> None:
        self.lines[position].append(action)
        self._begun[action.kind][action.stage] += 1
        heapq.heappush(self._ends, (now + self.graph.work[action.stage] * UNITS[action.kind], position, action))

    def _best(self, stages: list[int]) -> Action | None:
        """What to start now at a position of these stages; of forwards the one with most behind it, of backwards the
        one with least before it."""
        backwards, forwards, left = self._begun["B"], self._begun["F"], self.graph.left
        ready = [(backwards[s], left[s], s) for s in stages if self._backward_ready(s, backwards[s])]
        if ready:
            microbatch, _, stage = min(ready)
            return Action(stage, "B", microbatch)
        ready = [(forwards[s], -left[s], s) for s in stages if self._forward_ready(s, forwards[s])]
        if ready:
            microbatch, _, stage = min(ready)
            return Action(stage, "F", microbatch)
        return None

    def _forward_ready(self, stage: int, microbatch: int) -> bool:
        """Whether what a stage reads of a microbatch is there, and little enough in flight."""
        if microbatch == self.microbatches or microbatch - self._begun["B"][stage] > self.graph.depth[stage]:
            return False
        done = self._done["F"]
        return all(done[before] > microbatch for before in self.graph.reads[stage])

    def _backward_ready(self, stage: int, microbatch: int) -> bool:
        """Whether a stage's forward of a microbatch is done, and all gradients that it waits for are there."""
        if self._done["F"][stage] <= microbatch:
            return False
        done = self._done["B"]
        return all(done[after] > microbatch for after in self.graph.awaits[stage])
