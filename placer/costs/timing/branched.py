"""The step time of the order of a plan, played with its seconds.

    step = max over positions of (end of its last action + sums) + fixed + max over positions of (optimizer + gathering)

since nobody updates before all have met in the world's own collectives. An action starts when its position is free and
what it reads is there. Either end of a message comes to it where its program has it, in the times of the plan's order:
behind what makes it and, at the reader, behind what it has begun before the message is made (`played`). Where state is
sharded its last backward scatters gradients before it sends its own on; buckets of a stage follow its last action;
parts of gradients and what is tied are summed when a position has done all else, the latter beside the first position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from placer.costs.timing.played import Line, Turn, Wire, played
from placer.costs.timing.step import StageCost
from placer.plans.schedule import Action, ActionKind, TimedActions
from placer.plans.stage_graph import StageGraph

# (stage that makes, stage that reads) -> the messages of each microbatch: values on, or their gradients back.
Messages = Mapping[tuple[int, int], Sequence[Wire]]
# Orders whose turns are remembered: searches ask for plans of one after another. By definition no price.
REMEMBERED = 64
# Of each stage the seconds of each microbatch.
PassSeconds = Sequence[Sequence[float]]

# The kinds of actions in the order in which `_computed` has the seconds of a stage.
_KINDS: Sequence[ActionKind] = ("F", "B", "I", "W")
# A message that takes no time.
_AT_ONCE = Wire(0.0, 0.0)

# The stages at both ends of messages.
_Ends = tuple[tuple[int, int], ...]


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

    def step(self) -> float:
        """Seconds of the step without the world's collectives."""
        return self._met_with_messages + max(self._updates())

    def communication(self) -> float:
        """How many seconds shorter the step would be if messages took no time."""
        return max(0.0, self._met_with_messages - self._meeting([_AT_ONCE] * len(self._wires)))

    @cached_property
    def _met_with_messages(self) -> float:
        return self._meeting(self._wires)

    @cached_property
    def _wires(self) -> list[Wire]:
        return [wire for messages in (self.sent, self.returned) for own in messages.values() for wire in own]

    def _meeting(self, wires: Sequence[Wire]) -> float:
        """When all positions meet, where messages are `wires`."""
        reducing = tuple([stage.buckets > 0 for stage in self.stages])
        lines = _lines(self.order, self.graph, tuple(self.sent), tuple(self.returned), reducing)
        return self._met(played(lines, self._computed(), wires))

    def _met(self, done: Sequence[float]) -> float:
        """When all positions meet that are `done` with their lines then: after sums of parts, and of what is tied."""
        clock, at = list(done), self.graph.at
        for stage, position in zip(self.stages, at, strict=True):
            clock[position] += stage.summed
        for stage, position in zip(self.stages, at, strict=True):
            if stage.tied:
                clock[position] = clock[at[0]] = max(clock[position], clock[at[0]]) + stage.tied
        return max(clock)

    def _computed(self) -> list[float]:
        """Seconds of what turns compute: sums of stages, and of each its microbatches by kind of action."""
        found = [stage.buckets for stage in self.stages]
        passes = zip(self.stages, self.forward, self.backward, self.weight, strict=True)
        for stage, forward, backward, weight in passes:
            whole, inputs = list(backward), [both - one for both, one in zip(backward, weight, strict=True)]
            whole[-1] += stage.scattered
            inputs[-1] += stage.scattered
            found += [*forward, *whole, *inputs, *weight]
        return found

    def _updates(self) -> list[float]:
        """Seconds of the update of each position, and of gathering what was updated."""
        found = [0.0] * len(self.order.actions)
        for stage, position in zip(self.stages, self.graph.at, strict=True):
            found[position] += stage.optimizer + stage.gathered
        return found


@lru_cache(maxsize=REMEMBERED)
def _lines(
    order: TimedActions, graph: StageGraph, sent: _Ends, returned: _Ends, reducing: tuple[bool, ...]
) -> tuple[Line, ...]:
    """Of each position what it does, in the order of its program (`placer.program.lowering`)."""
    times, count = order.times, 1 + max([action.microbatch for line in order.actions for action in line])
    found = [_Entries() for _ in order.actions]
    ends: dict[tuple[int, bool], list[float]] = {}
    coming: dict[tuple[bool, int], list[int]] = {}
    for first, (maker, reader, back) in enumerate(_kinds_of_messages(sent, returned)):
        coming.setdefault((back, reader), []).append(first * count)
        if (maker, back) not in ends:
            ends[maker, back] = _ends(maker, back, times, count)
        numbers, at = range(first * count, (first + 1) * count), graph.at[maker]
        for position in (at, graph.at[reader]):
            found[position].add(ends[maker, back], 0, at, numbers, numbers)
    for position, line in enumerate(order.actions):
        _add_actions(found[position], position, line, times, coming, len(reducing))
        _add_reductions(found[position], position, line, times, reducing)
    return tuple([entries.in_order() for entries in found])


class _Entries:
    """What a position comes to, and by what that is in order: when, what comes first then (0 messages, 1 reductions,
    2 actions), the position that makes it, the number of the message or of the action in its line."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.float64]] = []
        self.does: list[int | Turn] = []

    def add(
        self, when: Sequence[float], first: int, maker: int, numbers: Sequence[int], does: Iterable[int | Turn]
    ) -> None:
        """More of one kind that one position makes."""
        keys = np.empty((4, len(when)))
        keys[0], keys[1], keys[2], keys[3] = numbers, maker, first, when
        self.keys.append(keys)
        self.does += does

    def in_order(self) -> Line:
        """All of it."""
        if not self.keys:
            return ()
        order: list[int] = np.lexsort(np.concatenate(self.keys, axis=1)).tolist()
        return [self.does[one] for one in order]


def _kinds_of_messages(sent: _Ends, returned: _Ends) -> Iterator[tuple[int, int, bool]]:
    """The stage that makes a message of each microbatch, the one that reads it, and whether it is a gradient."""
    yield from ((source, target, False) for source, target in sent)
    yield from ((target, source, True) for source, target in returned)


def _ends(maker: int, back: bool, times: Mapping[Action, tuple[float, float]], count: int) -> list[float]:
    """When a stage has made what it sends of each microbatch: its forwards' end, or that of what its backward sends."""
    kind: ActionKind = "F" if not back else "I" if Action(maker, "I", 0) in times else "B"
    return [times[Action(maker, kind, microbatch)][1] for microbatch in range(count)]


def _add_actions(
    entries: _Entries, position: int, line: Sequence[Action], times: Mapping[Action, tuple[float, float]],
    coming: Mapping[tuple[bool, int], Sequence[int]], stages: int,
) -> None:  # fmt: skip
    """What a position computes; `coming` has the numbers of the first microbatch's messages to a stage."""
    count, does = 1 + max([action.microbatch for action in line], default=0), list[Turn]()
    for stage, kind, microbatch in line:
        firsts = () if kind == "W" else coming.get((kind != "F", stage), ())
        computes = stages + (_KINDS.index(kind) + len(_KINDS) * stage) * count + microbatch
        does.append((tuple([first + microbatch for first in firsts]), computes))
    entries.add([times[action][0] for action in line], 2, position, range(len(line)), does)


def _add_reductions(
    entries: _Entries, position: int, line: Sequence[Action], times: Mapping[Action, tuple[float, float]],
    reducing: Sequence[bool],
) -> None:  # fmt: skip
    """What a position reduces, behind the last action of a stage."""
    last = {action.stage: number for number, action in enumerate(line) if reducing[action.stage]}
    numbers = list(last.values())
    entries.add([times[line[number]][1] for number in numbers], 1, position, numbers, [((), stage) for stage in last])
