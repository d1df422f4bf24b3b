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

from placer.costs.timing.played import Turn, Wire, played
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

# The messages that a turn reads, and the number of what it computes; None: an end of a message.
_Does = tuple[tuple[int, ...], int] | None
# The stages at both ends of messages.
_Ends = tuple[tuple[int, int], ...]
# What a position comes to: when, what comes first then (0 messages, 1 reductions, 2 actions), the position that makes
# it, the number of the message or of the action in its line, and what it does.
_Entry = tuple[float, int, int, int, _Does]


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
        return self._meeting(self._wires()) + max(self._updates())

    def communication(self) -> float:
        """How many seconds shorter the step would be if messages took no time."""
        wires = self._wires()
        return max(0.0, self._meeting(wires) - self._meeting([_AT_ONCE] * len(wires)))

    def _wires(self) -> list[Wire]:
        return [wire for messages in (self.sent, self.returned) for own in messages.values() for wire in own]

    def _meeting(self, wires: Sequence[Wire]) -> float:
        """When all positions meet, where messages are `wires`."""
        reducing = tuple([stage.buckets > 0 for stage in self.stages])
        lines = _turns(self.order, self.graph, tuple(self.sent), tuple(self.returned), reducing)
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
        """Seconds of what turns compute: none, sums of stages, and of each its microbatches by kind of action."""
        found = [0.0, *[stage.buckets for stage in self.stages]]
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
def _turns(
    order: TimedActions, graph: StageGraph, sent: _Ends, returned: _Ends, reducing: tuple[bool, ...]
) -> tuple[tuple[Turn, ...], ...]:
    """Of each position its turns, in the order of its program (`placer.program.lowering`)."""
    times, count = order.times, 1 + max([action.microbatch for line in order.actions for action in line])
    entries: list[list[_Entry]] = [[] for _ in order.actions]
    ends: dict[tuple[int, bool], list[float]] = {}
    coming: dict[tuple[bool, int], list[int]] = {}
    for first, (maker, reader, back) in enumerate(_kinds_of_messages(sent, returned)):
        coming.setdefault((back, reader), []).append(first * count)
        at = graph.at[maker]
        if (maker, back) not in ends:
            ends[maker, back] = _ends(maker, back, times, count)
        own = [(end, 0, at, number, None) for number, end in enumerate(ends[maker, back], first * count)]
        entries[at] += own
        entries[graph.at[reader]] += own
    for position, line in enumerate(order.actions):
        entries[position] += _own(position, line, times, reducing, coming)
    return tuple(map(_in_order, entries))


def _kinds_of_messages(sent: _Ends, returned: _Ends) -> Iterator[tuple[int, int, bool]]:
    """The stage that makes a message of each microbatch, the one that reads it, and whether it is a gradient."""
    yield from ((source, target, False) for source, target in sent)
    yield from ((target, source, True) for source, target in returned)


def _ends(maker: int, back: bool, times: Mapping[Action, tuple[float, float]], count: int) -> list[float]:
    """When a stage has made what it sends of each microbatch: its forwards' end, or that of what its backward sends."""
    kind: ActionKind = "F" if not back else "I" if Action(maker, "I", 0) in times else "B"
    return [times[Action(maker, kind, microbatch)][1] for microbatch in range(count)]


def _own(
    position: int, line: Sequence[Action], times: Mapping[Action, tuple[float, float]], reducing: Sequence[bool],
    coming: Mapping[tuple[bool, int], Sequence[int]],
) -> Iterator[_Entry]:  # fmt: skip
    """What a position does, and what it reduces behind the last action of a stage; `coming` has the numbers of the
    first microbatch's messages to a stage."""
    last = {action.stage: number for number, action in enumerate(line)}
    stages, count = len(reducing), 1 + max([action.microbatch for action in line], default=0)
    for number, action in enumerate(line):
        stage, kind, microbatch = action
        firsts = () if kind == "W" else coming.get((kind != "F", stage), ())
        computes = 1 + stages + (_KINDS.index(kind) + len(_KINDS) * stage) * count + microbatch
        start, end = times[action]
        yield start, 2, position, number, (tuple([first + microbatch for first in firsts]), computes)
        if last[stage] == number and reducing[stage]:
            yield end, 1, position, number, ((), 1 + stage)


def _in_order(entries: list[_Entry]) -> tuple[Turn, ...]:
    """What one position comes to, as turns; the last one computes nothing."""
    line: list[Turn] = []
    met: list[int] = []
    for _, _, _, number, does in sorted(entries):
        if does is None:
            met.append(number)
        else:
            line.append(Turn(tuple(met), *does))
            met.clear()
    return (*line, Turn(tuple(met), (), 0))
