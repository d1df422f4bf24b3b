"""The step time of stages that are no chain: the order of the plan, played with its seconds.

    step = max over positions of (end of its last action + reduction) + fixed + max over positions of optimizer

since nobody updates before all have met in the world's own collectives. An action starts when its position is free and
what it reads is there. Either end of a message comes to it where its program has it, in the times of the plan's order:
behind what makes it and, at the reader, behind what it has begun before the message is made (`played`). What a stage
reduces follows its last action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from placer.costs.timing.played import Turn, Wire, played
from placer.plans.schedule import Action, Actions, milestone, prerequisites, timetable
from placer.plans.stage_graph import StageGraph

# (stage that makes, stage that reads) -> the messages of each microbatch: values on, or their gradients back.
Messages = Mapping[tuple[int, int], Sequence[Wire]]
# Of each stage the seconds of each microbatch.
PassSeconds = Sequence[Sequence[float]]

# A time, what comes first at it (messages, reductions, actions), then whatever makes the order that of programs.
_Key = tuple[float, int, int, int]
# An action, the number of a message, or the seconds of a reduction.
_Entry = Action | int | float


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
    sent: Messages
    returned: Messages

    def step(self) -> BranchedStep:
        """The step, and how much shorter it would be if messages took no time."""
        wires, lines = list(self._messages.values()), self._lines()
        seconds, free = max(played(lines, wires)), max(played(lines, [Wire(0.0, 0.0)] * len(wires)))
        return BranchedStep(seconds=seconds + max(self._updates()), communication=max(0.0, seconds - free))

    @cached_property
    def _messages(self) -> dict[tuple[Action, int], Wire]:
        """By what is made, and the stage that reads it."""
        found = {}
        for (source, target), wires in self.sent.items():
            found |= {(Action(source, "F", m), target): wire for m, wire in enumerate(wires)}
        for (source, target), wires in self.returned.items():
            found |= {(Action(target, "B", m), source): wire for m, wire in enumerate(wires)}
        return found

    def _lines(self) -> list[list[Turn]]:
        """Of each position its turns, in the order of its program (`placer.program.lowering`)."""
        lines: list[list[Turn]] = [[] for _ in self.order]
        met: list[list[int]] = [[] for _ in self.order]
        numbers = {message: number for number, message in enumerate(self._messages)}
        for _, entry, positions in sorted(self._entries(numbers), key=lambda one: one[0]):
            for position in positions:
                if isinstance(entry, int):
                    met[position].append(entry)
                    continue
                lines[position].append(self._turn(entry, tuple(met[position]), numbers))
                met[position].clear()
        for line, left in zip(lines, met, strict=True):
            line.append(Turn(left, (), 0.0))
        return lines

    def _entries(self, numbers: Mapping[tuple[Action, int], int]) -> Iterator[tuple[_Key, _Entry, tuple[int, ...]]]:
        """All that positions come to with its place in the order, and whose it is."""
        at, times = self.graph.at, timetable(self.order, self.graph)
        for position, line in enumerate(self.order):
            last = {action.stage: action for action in line}
            for action in line:
                start, end = times[action]
                yield (start, 2, position, 0), action, (position,)
                if last[action.stage] is action and self.reduction[action.stage]:
                    yield (end, 1, position, 0), float(self.reduction[action.stage]), (position,)
        made = {milestone(action): end for action, (_, end) in times.items() if action.kind != "W"}
        for (action, reader), number in numbers.items():
            ends = at[action.stage], at[reader]
            yield (made[action], 0, ends[0], number), number, ends

    def _turn(self, entry: Action | float, met: Sequence[int], numbers: Mapping[tuple[Action, int], int]) -> Turn:
        if isinstance(entry, float):
            return Turn(met, (), entry)
        needs = ((need, entry.stage) for need in prerequisites(entry, self.graph))
        return Turn(met, [numbers[need] for need in needs if need in numbers], self._seconds(entry))

    def _updates(self) -> list[float]:
        """Seconds of the update of each position."""
        found = [0.0] * len(self.order)
        for own, position in zip(self.optimizer, self.graph.at, strict=True):
            found[position] += own
        return found

    def _seconds(self, action: Action) -> float:
        stage, microbatch = action.stage, action.microbatch
        if action.kind == "F":
            return self.forward[stage][microbatch]
        weight = 0.0 if action.kind == "B" else self.weight[stage][microbatch]
        return weight if action.kind == "W" else self.backward[stage][microbatch] - weight
