"""The step time of stages that are no chain: the order of the plan, played with its seconds.

    step = max over positions of (end of its last action + reduction) + fixed + max over positions of optimizer

since nobody updates before all have met in the world's own collectives. An action starts when its position is free and
what it reads is there. A message takes its seconds from when it is made and its reader has done all that comes before
it in the order of its program: what the reader begins, in the times of that order, before the message is made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placer.plans.schedule import Action, Actions, milestone, prerequisites, timetable
from placer.plans.stage_graph import StageGraph

# (stage that makes, stage that reads, microbatch) -> seconds of the values on, or of their gradients back.
MessageSeconds = Mapping[tuple[int, int, int], float]
# Of each stage the seconds of each microbatch.
PassSeconds = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchedStep:
    """Seconds of a step without the world's collectives, and those of them that messages cost."""

    seconds: float
    communication: float


@dataclass(frozen=True, kw_only=True)
class BranchedOrder:
    """The order of a plan and its seconds: of both passes of the stages and of the backward's weight part, of what each
    stage reduces behind its last backward, of its update, and of the messages on and back."""

    order: Actions
    graph: StageGraph
    forward: PassSeconds
    backward: PassSeconds
    weight: PassSeconds
    reduction: Sequence[float]
    optimizer: Sequence[float]
    sent: MessageSeconds
    returned: MessageSeconds

    def step(self) -> BranchedStep:
        """The step, and how much shorter it would be if messages took no time."""
        seconds, free = self._played(messages=True), self._played(messages=False)
        return BranchedStep(seconds=seconds, communication=max(0.0, seconds - free))

    def _played(self, *, messages: bool) -> float:
        times, at = timetable(self.order, self.graph), self.graph.at
        starts = [[times[action][0] for action in line] for line in self.order]
        made = {milestone(action): end for action, (_, end) in times.items()}
        done: list[list[float]] = [[] for _ in self.order]
        ends: dict[Action, float] = {}
        for action in sorted(times, key=lambda one: (times[one][0], at[one.stage])):
            position = at[action.stage]
            begin = done[position][-1] if done[position] else 0.0
            for need in prerequisites(action, self.graph):
                arrived = ends[need]
                if messages and at[need.stage] != position:
                    # Equal starts come after: an end sorts before what begins then.
                    before = bisect_left(starts[position], made[need])
                    ready = done[position][before - 1] if before else 0.0
                    arrived = max(arrived, ready) + self._message(need, action)
                begin = max(begin, arrived)
            ends[milestone(action)] = begin + self._seconds(action)
            done[position].append(ends[milestone(action)])
        reduced = zip(done, self._by_position(self.reduction), strict=True)
        return max(line[-1] + behind for line, behind in reduced) + max(self._by_position(self.optimizer))

    def _by_position(self, seconds: Sequence[float]) -> list[float]:
        found = [0.0] * len(self.order)
        for own, position in zip(seconds, self.graph.at, strict=True):
            found[position] += own
        return found

    def _message(self, made: Action, read: Action) -> float:
        sent = self.sent if made.kind == "F" else self.returned
        ends = (made.stage, read.stage) if made.kind == "F" else (read.stage, made.stage)
        return sent.get((*ends, made.microbatch), 0.0)

    def _seconds(self, action: Action) -> float:
        stage, microbatch = action.stage, action.microbatch
        if action.kind == "F":
            return self.forward[stage][microbatch]
        weight = 0.0 if action.kind == "B" else self.weight[stage][microbatch]
        return weight if action.kind == "W" else self.backward[stage][microbatch] - weight
