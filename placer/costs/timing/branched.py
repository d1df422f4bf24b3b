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
from functools import lru_cache
from typing import NamedTuple

from placer.costs.timing.played import Turn, Wire, played
from placer.plans.schedule import Action, Actions, milestone, prerequisites, timetable
from placer.plans.stage_graph import StageGraph

# (stage that makes, stage that reads) -> the messages of each microbatch: values on, or their gradients back.
Messages = Mapping[tuple[int, int], Sequence[Wire]]
# Orders whose places are remembered: searches ask for plans of one after another. By definition no price.
REMEMBERED = 64
# Of each stage the seconds of each microbatch.
PassSeconds = Sequence[Sequence[float]]

# A time, what comes first at it (messages, reductions, actions), then whatever makes the order that of programs.
_Key = tuple[float, int, int, int]
# An action, or the number of a stage whose gradients are reduced; None: nothing more.
_Does = Action | int | None
# The stages at both ends of messages.
_Ends = tuple[tuple[int, int], ...]
# What positions come to: a message by its number, or what it does.
_Entry = tuple[_Key, int | None, _Does, tuple[int, ...]]


class _Place(NamedTuple):
    """A `Turn` before its seconds are known."""

    met: tuple[int, ...]
    read: tuple[int, ...]
    does: _Does


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
        reducing = tuple(map(bool, self.reduction))
        places = _places(self.order, self.graph, tuple(self.sent), tuple(self.returned), reducing)
        lines = [[Turn(met, read, self._spent(does)) for met, read, does in line] for line in places]
        wires = [wire for messages in (self.sent, self.returned) for own in messages.values() for wire in own]
        seconds, free = max(played(lines, wires)), max(played(lines, [Wire(0.0, 0.0)] * len(wires)))
        return BranchedStep(seconds=seconds + max(self._updates()), communication=max(0.0, seconds - free))

    def _spent(self, does: _Does) -> float:
        if isinstance(does, Action):
            return self._seconds(does)
        return 0.0 if does is None else self.reduction[does]

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


@lru_cache(maxsize=REMEMBERED)
def _places(
    order: Actions, graph: StageGraph, sent: _Ends, returned: _Ends, reducing: tuple[bool, ...]
) -> tuple[tuple[_Place, ...], ...]:
    """Of each position what it comes to, in the order of its program (`placer.program.lowering`)."""
    count = 1 + max(action.microbatch for line in order for action in line)
    made = [(Action(source, "F", m), target) for source, target in sent for m in range(count)]
    made += [(Action(target, "B", m), source) for source, target in returned for m in range(count)]
    numbers = {message: number for number, message in enumerate(made)}
    lines: list[list[_Place]] = [[] for _ in order]
    met: list[list[int]] = [[] for _ in order]
    for _, message, entry, positions in sorted(_entries(order, graph, numbers, reducing), key=lambda one: one[0]):
        for position in positions:
            if message is not None:
                met[position].append(message)
                continue
            read = _read(entry, graph, numbers) if isinstance(entry, Action) else ()
            lines[position].append(_Place(tuple(met[position]), read, entry))
            met[position].clear()
    return tuple((*line, _Place(tuple(left), (), None)) for line, left in zip(lines, met, strict=True))


def _read(action: Action, graph: StageGraph, numbers: Mapping[tuple[Action, int], int]) -> tuple[int, ...]:
    """The messages that an action reads."""
    found = ((need, action.stage) for need in prerequisites(action, graph))
    return tuple(numbers[one] for one in found if one in numbers)


def _entries(
    order: Actions, graph: StageGraph, numbers: Mapping[tuple[Action, int], int], reducing: Sequence[bool]
) -> Iterator[_Entry]:
    """All that positions come to with its place in the order, and whose it is."""
    times = timetable(order, graph)
    for position, line in enumerate(order):
        last = {action.stage: action for action in line}
        for action in line:
            start, end = times[action]
            yield (start, 2, position, 0), None, action, (position,)
            if last[action.stage] is action and reducing[action.stage]:
                yield (end, 1, position, 0), None, action.stage, (position,)
    made = {milestone(action): end for action, (_, end) in times.items() if action.kind != "W"}
    for (action, reader), number in numbers.items():
        ends = graph.at[action.stage], graph.at[reader]
        yield (made[action], 0, ends[0], number), number, None, ends
