"""Schedules: for each pipeline position the order of its actions, written `2F0` (stage 2, forward, microbatch 0).

`actions(name, positions, stages, microbatches)` gives one tuple of actions per position, p = 0..positions-1:

    gpipe        all forwards, then all backwards                                            (arXiv:1811.06965)
    1f1b         min(positions-1-p, m) forwards, then forward and backward in turn           (arXiv:2006.09503)
    interleaved  stage s at position s % positions; microbatches go in rounds of about `positions`, a round passes
                 all stages of a position before the next one starts                         (arXiv:2104.04473)
    branched     stages that are a graph, any number of them at a position: `placer.plans.branched`
    zero-bubble  ZB-H1: as 1f1b with the backward split; the weight part W of a microbatch waits until p more input
                 parts I are done, so that it fills the bubble and memory stays that of 1f1b (arXiv:2401.10241); a
                 lone position has no bubble: there it is 1f1b

`violations` judges any such lists, these or others: every action once, a microbatch's actions in their order, and an
order that all positions together can follow to the end.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from placer.errors import UsageError
from placer.plans.stage_graph import StageGraph, chain

# F forward, B whole backward, I backward for the inputs only, W backward for the weights only (zero-bubble).
ActionKind = Literal["F", "B", "I", "W"]

# Whose stages are a chain.
NAMES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
SPLIT_BACKWARD = frozenset({"zero-bubble"})
LOOPING = frozenset({"interleaved"})
# Whose stages are a graph.
BRANCHED = frozenset({"branched"})

# For orders only: a backward counts as two forwards, each of its parts as one.
UNITS: Mapping[ActionKind, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}

_WHOLE: tuple[ActionKind, ActionKind] = ("F", "B")
_INPUT_PART: tuple[ActionKind, ActionKind] = ("F", "I")
# An action that others wait for, of any microbatch: its kind and its stage.
_Milestone: TypeAlias = tuple[ActionKind, int]
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """One unit of computation of a stage on a microbatch."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> "Action":
        """The action of `2F0`. Raises UsageError for anything else."""
        found = _ACTION.fullmatch(text)
        if found is None:
            raise UsageError(
                f"{text!r} is not an action; write stage, kind ({'/'.join(get_args(ActionKind))}), microbatch: 2F0"
            )
        stage, kind, microbatch = found.groups()
        return Action(int(stage), next(k for k in get_args(ActionKind) if k == kind), int(microbatch))


# Of each position its actions in order.
Actions = tuple[tuple[Action, ...], ...]


def text(schedule: Actions) -> str:
    """One line per position: `0F0 0F1 0B0 0B1`."""
    return "\n".join(" ".join(map(str, line)) for line in schedule)


def parse(written: str) -> Actions:
    """The schedule of `text`."""
    return tuple(tuple(map(Action.parse, line.split())) for line in written.splitlines())


def actions(name: str, positions: int, stages: int, microbatches: int) -> Actions:
    """The actions of every position in order, of a chain of stages (of a plan: `placer.plans.order`).

    Raises UsageError where the schedule cannot have this structure.
    """
    refusal = structure_violation(name, positions, stages)
    if name in BRANCHED:
        refusal = f"{name} orders the stages of a plan, by what they read of each other"
    if refusal:
        raise UsageError(refusal)
    if microbatches < 1:
        raise UsageError(f"{microbatches} microbatches were asked for; a schedule needs at least 1")
    if name == "gpipe":
        return tuple(_gpipe(p, microbatches) for p in range(positions))
    if name == "1f1b" or (name == "zero-bubble" and positions == 1):
        return tuple(_one_f_one_b(p, positions, microbatches) for p in range(positions))
    if name == "zero-bubble":
        return tuple(_zero_bubble(p, positions, microbatches) for p in range(positions))
    return tuple(_interleaved(p, positions, stages // positions, microbatches) for p in range(positions))


def structure_violation(name: str, positions: int, stages: int) -> str:
    """Why `name` cannot run `stages` stages on `positions` positions; empty where it can."""
    if name not in (*NAMES, *BRANCHED):
        return f"there is no schedule {name!r}; known: {', '.join((*NAMES, *BRANCHED))}"
    if positions < 1 or stages < 1:
        return f"{stages} stages on {positions} positions: there must be at least one of each"
    if name in LOOPING and stages % positions:
        return f"{name} gives every position equally many stages; {stages} stages do not divide by {positions}"
    if name not in LOOPING | BRANCHED and stages != positions:
        return f"{name} has one stage per position; found {stages} stages on {positions} positions (use interleaved)"
    return ""


def in_flight(schedule: Actions) -> tuple[int, ...]:
    """Per position the most (stage, microbatch) pairs whose activations are alive at once: from F until B or W."""
    return tuple(max(_alive(line), default=0) for line in schedule)


def violations(schedule: Actions, stages: int | StageGraph, microbatches: int) -> tuple[str, ...]:
    """Every rule the lists break; empty for a schedule that runs to its end. A number of `stages` is a chain."""
    graph = _graph(stages)
    found = (*_count_violations(schedule, len(graph.at), microbatches), *_place_violations(schedule))
    return found or tuple(_deadlocks(schedule, graph))


def timetable(
    schedule: Actions, stages: int | StageGraph, seconds: Mapping[ActionKind, float] = UNITS
) -> dict[Action, tuple[float, float]]:
    """Start and end of every action that can run when each position follows its list and messages take no time.

    `seconds` are of a stage of work 1; a number of `stages` is a chain of such.
    """
    graph = _graph(stages)
    times: dict[Action, tuple[float, float]] = {}
    reached: dict[_Milestone, dict[int, float]] = {(kind, s): {} for kind in _WHOLE for s in range(len(graph.at))}
    awaited = {
        (s, kind): [(one, reached[one]) for one in _awaited(s, kind, graph)] for _, s in reached for kind in UNITS
    }
    clock, following = [0.0] * len(schedule), [0] * len(schedule)
    waiting: dict[tuple[_Milestone, int], list[int]] = {}
    runnable = list(range(len(schedule)))
    while runnable:
        position = runnable.pop()
        line = schedule[position]
        while following[position] < len(line):
            stage, kind, microbatch = action = line[following[position]]
            start, missing = clock[position], None
            for one, ends in awaited[stage, kind]:
                if microbatch not in ends:
                    missing = one
                    break
                start = max(start, ends[microbatch])
            if missing is not None:
                waiting.setdefault((missing, microbatch), []).append(position)
                break
            clock[position] = end = start + graph.work[stage] * seconds[kind]
            times[action] = start, end
            following[position] += 1
            if kind != "W":
                done = _reached_by(kind), stage
                reached[done][microbatch] = end
                runnable += waiting.pop((done, microbatch), ())
    return {action: times[action] for line in schedule for action in line if action in times}


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedActions:
    """The actions of every position in order, and start and end of each as `timetable` has them; known by identity."""

    actions: Actions
    times: Mapping[Action, tuple[float, float]]


def milestone(action: Action) -> Action:
    """What others wait for: an input part I lets the stage before go on as a whole backward B does."""
    return Action(action.stage, _reached_by(action.kind), action.microbatch)


def prerequisites(action: Action, graph: StageGraph) -> tuple[Action, ...]:
    """The milestones that must be reached before `action`."""
    return tuple([Action(s, kind, action.microbatch) for kind, s in _awaited(action.stage, action.kind, graph)])


def _reached_by(kind: ActionKind) -> ActionKind:
    return "B" if kind == "I" else kind


def _awaited(stage: int, kind: ActionKind, graph: StageGraph) -> tuple[_Milestone, ...]:
    """The milestones, of its own microbatch, that an action of a stage waits for."""
    if kind == "F":
        return tuple([("F", before) for before in graph.reads[stage]])
    if kind == "W":
        return (("B", stage),)
    return (("F", stage), *[("B", after) for after in graph.awaits[stage]])


def _graph(stages: int | StageGraph) -> StageGraph:
    return chain(stages) if isinstance(stages, int) else stages


def _gpipe(position: int, microbatches: int) -> tuple[Action, ...]:
    return tuple(Action(position, kind, m) for kind in _WHOLE for m in range(microbatches))


def _one_f_one_b(position: int, positions: int, microbatches: int) -> tuple[Action, ...]:
    forwards, backwards = ([Action(position, kind, m) for m in range(microbatches)] for kind in _WHOLE)
    return tuple(_in_turn(forwards, backwards, positions - 1 - position))


def looped(positions: int, turns: int, microbatches: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The (turn, microbatch) of the forwards, and of the backwards, of every interleaved position, in order."""
    rounds = _rounds(positions, microbatches)
    forwards = [(turn, m) for members in rounds for turn in range(turns) for m in members]
    backwards = [(turn, m) for members in rounds for turn in reversed(range(turns)) for m in members]
    return forwards, backwards


def looped_warmup(position: int, positions: int, turns: int, microbatches: int) -> int:
    """How many forwards an interleaved position runs before its first forward and backward in turn."""
    return (turns - 1) * len(_rounds(positions, microbatches)[0]) + 2 * (positions - 1 - position)


def _interleaved(position: int, positions: int, turns: int, microbatches: int) -> tuple[Action, ...]:
    """Any number of microbatches: rounds of as equal a size as possible (equal ones give the published order)."""
    forwards, backwards = (
        [Action(position + turn * positions, kind, m) for turn, m in order]
        for kind, order in zip(_WHOLE, looped(positions, turns, microbatches), strict=True)
    )
    return tuple(_in_turn(forwards, backwards, looped_warmup(position, positions, turns, microbatches)))


def _rounds(positions: int, microbatches: int) -> list[range]:
    count = max(1, microbatches // positions)
    size, longer = divmod(microbatches, count)
    ends = [0, *accumulate(size + (index < longer) for index in range(count))]
    return [range(*span) for span in pairwise(ends)]


def _zero_bubble(position: int, positions: int, microbatches: int) -> tuple[Action, ...]:
    forwards, inputs = ([Action(position, kind, m) for m in range(microbatches)] for kind in _INPUT_PART)
    order: list[Action] = []
    weights = 0
    for action in _in_turn(forwards, inputs, positions - 1 - position):
        order.append(action)
        if action.kind == "I" and action.microbatch >= position:
            order.append(Action(position, "W", weights))
            weights += 1
    return (*order, *(Action(position, "W", m) for m in range(weights, microbatches)))


def _in_turn(forwards: list[Action], backwards: list[Action], warmup: int) -> Iterator[Action]:
    """`warmup` forwards (fewer where there are fewer), then one forward and one backward in turn."""
    warmup = min(warmup, len(forwards))
    yield from forwards[:warmup]
    for index, backward in enumerate(backwards):
        yield from forwards[warmup + index : warmup + index + 1]
        yield backward


def _alive(line: tuple[Action, ...]) -> Iterator[int]:
    alive = 0
    releasing: ActionKind = "W" if any(action.kind == "W" for action in line) else "B"
    for action in line:
        alive += (action.kind == "F") - (action.kind == releasing)
        yield alive


def _count_violations(schedule: Actions, stages: int, microbatches: int) -> Iterator[str]:
    counts = Counter(action for line in schedule for action in line)
    split = any(action.kind in "IW" for action in counts)
    kinds: tuple[ActionKind, ...] = ("F", "I", "W") if split else _WHOLE
    wanted = {Action(s, kind, m) for s in range(stages) for kind in kinds for m in range(microbatches)}
    for action in sorted(wanted - counts.keys()):
        yield f"{action} is missing"
    for action in sorted(counts):
        if action not in wanted:
            yield f"{action} is not wanted: {stages} stages, {microbatches} microbatches, kinds {', '.join(kinds)}"
        elif counts[action] > 1:
            yield f"{action} appears {counts[action]} times"


def _place_violations(schedule: Actions) -> Iterator[str]:
    home: dict[int, int] = {}
    for position, line in enumerate(schedule):
        for action in line:
            other = home.setdefault(action.stage, position)
            if other != position:
                yield f"{action} is at position {position}, but stage {action.stage} belongs to position {other}"


def _deadlocks(schedule: Actions, graph: StageGraph) -> Iterator[str]:
    done = timetable(schedule, graph)
    for position, line in enumerate(schedule):
        stuck = next((action for action in line if action not in done), None)
        if stuck is not None:
            needs = ", ".join(str(n) for n in prerequisites(stuck, graph) if n not in {milestone(a) for a in done})
            yield f"position {position} waits for ever at {stuck}, which needs {needs}"
