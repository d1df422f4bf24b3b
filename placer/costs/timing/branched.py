"""The step time of the order of a plan, played with its seconds.

    step = max over positions of (end of its last action + sums) + fixed + max over positions of (optimizer + gathering)

since nobody updates before all have met in the world's own collectives. An action starts when its position is free and
what it reads is there. Either end of a message comes to it where its program has it, in the times of the plan's order:
behind what makes it and, at the reader, behind what it has begun before the message is made (`played`). Where state is
sharded its last backward scatters gradients before it sends its own on; buckets of a stage follow its last action;
parts of gradients and what is tied are summed when a position has done all else, the latter beside the first position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from placer.costs.timing.played import Turn, Wire, played
from placer.costs.timing.step import StageCost
from placer.plans.schedule import Action, ActionKind, TimedActions
from placer.plans.stage_graph import StageGraph

# (stage that makes, stage that reads) -> the messages of each microbatch: values on, or their gradients back.
Messages = Mapping[tuple[int, int], Sequence[Wire]]
# Orders whose places are remembered: searches ask for plans of one after another. By definition no price.
REMEMBERED = 64
# Of each stage the seconds of each microbatch.
PassSeconds = Sequence[Sequence[float]]

# An action, or the number of a stage whose gradients are reduced; None: nothing more.
_Does = Action | int | None
# The stages at both ends of messages.
_Ends = tuple[tuple[int, int], ...]
# What a position comes to: when, what comes first then (0 messages, 1 reductions, 2 actions), the position that makes
# it, the number of the message or of the action in its line, and what it does.
_Entry = tuple[float, int, int, int, _Does]


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
    """The order of a plan and its seconds: of both passes of the stages and of the backward's weight part, of what
    follows the last backward of each, and of the messages on and back."""

    order: TimedActions
    graph: StageGraph
    forward: PassSeconds
    backward: PassSeconds
    weight: PassSeconds
    stages: Sequence[StageCost]
    sent: Messages
    returned: Messages

    def step(self) -> BranchedStep:
        """The step, and how much shorter it would be if messages took no time."""
        reducing = tuple([stage.buckets > 0 for stage in self.stages])
        places = _places(self.order, self.graph, tuple(self.sent), tuple(self.returned), reducing)
        lines = [[Turn(met, read, self._spent(does)) for met, read, does in line] for line in places]
        wires = [wire for messages in (self.sent, self.returned) for own in messages.values() for wire in own]
        seconds, free = (self._met(played(lines, each)) for each in (wires, [Wire(0.0, 0.0)] * len(wires)))
        return BranchedStep(seconds=seconds + max(self._updates()), communication=max(0.0, seconds - free))

    def _met(self, done: Sequence[float]) -> float:
        """When all positions meet that are `done` with their lines then: after sums of parts, and of what is tied."""
        clock, at = list(done), self.graph.at
        for stage, position in zip(self.stages, at, strict=True):
            clock[position] += stage.summed
        for stage, position in zip(self.stages, at, strict=True):
            if stage.tied:
                clock[position] = clock[at[0]] = max(clock[position], clock[at[0]]) + stage.tied
        return max(clock)

    def _spent(self, does: _Does) -> float:
        if isinstance(does, Action):
            return self._seconds(does)
        return 0.0 if does is None else self.stages[does].buckets

    def _updates(self) -> list[float]:
        """Seconds of the update of each position, and of gathering what was updated."""
        found = [0.0] * len(self.order.actions)
        for stage, position in zip(self.stages, self.graph.at, strict=True):
            found[position] += stage.optimizer + stage.gathered
        return found

    def _seconds(self, action: Action) -> float:
        stage, microbatch = action.stage, action.microbatch
        if action.kind == "F":
            return self.forward[stage][microbatch]
        weight = 0.0 if action.kind == "B" else self.weight[stage][microbatch]
        if action.kind == "W":
            return weight
        scattered = self.stages[stage].scattered if microbatch == len(self.backward[stage]) - 1 else 0.0
        return self.backward[stage][microbatch] - weight + scattered


@lru_cache(maxsize=REMEMBERED)
def _places(
    order: TimedActions, graph: StageGraph, sent: _Ends, returned: _Ends, reducing: tuple[bool, ...]
) -> tuple[tuple[_Place, ...], ...]:
    """Of each position what it comes to, in the order of its program (`placer.program.lowering`)."""
    lines, times = order.actions, order.times
    count = 1 + max([action.microbatch for line in lines for action in line])
    entries = [list(_own(position, line, times, reducing)) for position, line in enumerate(lines)]
    coming: dict[tuple[bool, int], list[int]] = {}
    for first, (maker, reader, back) in enumerate(_kinds_of_messages(sent, returned)):
        coming.setdefault((back, reader), []).append(first * count)
        at = graph.at[maker]
        for microbatch, end in enumerate(_ends(maker, back, times, count)):
            entry = (end, 0, at, first * count + microbatch, None)
            entries[at].append(entry)
            entries[graph.at[reader]].append(entry)
    return tuple(_in_order(own, coming) for own in entries)


def _kinds_of_messages(sent: _Ends, returned: _Ends) -> Iterator[tuple[int, int, bool]]:
    """The stage that makes a message of each microbatch, the one that reads it, and whether it is a gradient."""
    yield from ((source, target, False) for source, target in sent)
    yield from ((target, source, True) for source, target in returned)


def _own(
    position: int, line: Sequence[Action], times: Mapping[Action, tuple[float, float]], reducing: Sequence[bool]
) -> Iterator[_Entry]:
    """What a position does, and what it reduces behind the last action of a stage."""
    last = {action.stage: number for number, action in enumerate(line)}
    for number, action in enumerate(line):
        start, end = times[action]
        yield start, 2, position, number, action
        if last[action.stage] == number and reducing[action.stage]:
            yield end, 1, position, number, action.stage


def _ends(maker: int, back: bool, times: Mapping[Action, tuple[float, float]], count: int) -> Iterator[float]:
    """When a stage has made what it sends of each microbatch: its forwards' end, or that of what its backward sends."""
    kind: ActionKind = "F" if not back else "I" if Action(maker, "I", 0) in times else "B"
    return (times[Action(maker, kind, microbatch)][1] for microbatch in range(count))


def _in_order(entries: list[_Entry], coming: Mapping[tuple[bool, int], Sequence[int]]) -> tuple[_Place, ...]:
    """What one position comes to; `coming` has the number of the first microbatch's messages to a stage."""
    line: list[_Place] = []
    met: list[int] = []
    for _, what, _, number, does in sorted(entries):
        if what == 0:
            met.append(number)
            continue
        read: tuple[int, ...] = ()
        if isinstance(does, Action) and does.kind != "W":
            firsts = coming.get((does.kind != "F", does.stage), ())
            read = tuple([first + does.microbatch for first in firsts])
        line.append(_Place(tuple(met), read, does))
        met.clear()
    return (*line, _Place(tuple(met), (), None))
