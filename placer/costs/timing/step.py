"""The closed step time: a few numbers per stage (`terms`), sums over all stages and maxima over positions.

    step = sum of fill + max(steady, sum of rounds + turn) + tail + fixed      steady, turn, tail: each the maximum over
                                                                               positions of what their stages sum up to

With F, B seconds of one full microbatch (B with recompute and gathers), W the weight part of B, X_f and X_b the
messages a stage sends on and gets back per microbatch, X = X_f + X_b, A the seconds of adding to gradients that exist
already, F', B' of the last microbatch (which may be smaller), m microbatches, p positions, v stages per position:

    1f1b          fill = F + B + A + X + chained
                  steady = (m-2) (F + B + A) + F' + B' + stalls X
    gpipe         the same
    interleaved   fill = (F + B + A + X) / v + tied;  steady = that of 1f1b, its stalls / v, + (1 - 1/v) (F + B + A)
                  turn = that of 1f1b / v;  rounds = (1 - 1/v) (F + B + A + X)
    zero-bubble   fill = F + B + X + chained - hidden;  steady = that of 1f1b + A + hidden
                  hidden = W + min(W, F, B - W) min(1, (m-1) / (p-1));  0 where p = 1
    (m = 1: A = 0, steady = (1 - 1/v) (F + B), turn = 0; rounds and turn of other schedules: 0)
    chained       = scatters of sharded gradients, which the last backward of a stage makes before the one of the stage
                    before it can begin, and those tied: sums that the first position has too, which wait for it
    tail          = reduction that the last backward does not hide, optimizer, gathering; interleaved: scatters
    fixed         = collectives of the world: loss (and norm)

A message is taken only when the computation before it in the receiver's order is done, so that gpipe waits for each:
stalls = m-1. With 1f1b p microbatches are in flight and a round trip of 2 (p-1) messages passes per p microbatches:
stalls = (m-1) - ceil((m-1) / p). Bubble of GPipe and 1F1B: arXiv:1811.06965, 2006.09503; interleaved
(p-1)/v: arXiv:2104.04473 section 2.2.2; ZB-H1: arXiv:2401.10241 section 2.1. `hidden` moves from fill to steady so that
it never counts for the slowest stage itself. Interleaved, a position that has done all microbatches of a turn before
the first of them comes round again waits for it: the step is then v rounds of one microbatch, and one turn.

It is exact of equal stages whose messages are short; of `interleaved` ones with long messages it is less than half at
worst. Where turns that differ wait for each other (`waits_between_turns`), or values skip stages, `step_estimate` plays
the order too and takes what is longer, so that terms stay a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage under a plan: seconds of a full microbatch, of the last one, and of what follows the last backward.

    `backward` holds everything between a microbatch's gradient arriving and leaving: recompute and gathers too.
    Of `reduction` some is `scattered` within the last backward, before its gradient leaves; some is `summed` when the
    position has done all else, then what is `tied`, which the first position takes part in; and some is `gathered`
    after the update. The rest follows the last backward of the stage.
    """

    forward: float
    backward: float
    weight: float = 0.0
    last_forward: float = 0.0
    last_backward: float = 0.0
    send_forward: float = 0.0
    send_backward: float = 0.0
    accumulate: float = 0.0
    reduction: float = 0.0
    optimizer: float = 0.0
    scattered: float = 0.0
    summed: float = 0.0
    tied: float = 0.0
    gathered: float = 0.0

    @property
    def work(self) -> float:
        """F + B."""
        return self.forward + self.backward

    @property
    def tail(self) -> float:
        """What follows the last backward: exposed reduction (tied parameters too), then the optimizer."""
        return self.reduction + self.optimizer

    @property
    def buckets(self) -> float:
        """Of the reduction what follows the last backward of the stage at once."""
        return max(0.0, self.reduction - self.scattered - self.summed - self.tied - self.gathered)

    @property
    def messages(self) -> float:
        """X."""
        return self.send_forward + self.send_backward


@dataclass(frozen=True, slots=True)
class Terms:
    """What one stage adds to the formula."""

    fill: float
    steady: float
    tail: float
    rounds: float = 0.0
    turn: float = 0.0


def stalls(schedule: str, positions: int, microbatches: int) -> int:
    """How many round trips of one message a schedule waits for on the slowest chain."""
    return (microbatches - 1) - (0 if schedule == "gpipe" else ceil((microbatches - 1) / positions))


def terms(stage: StageCost, schedule: str, *, positions: int, turns: int = 1, microbatches: int) -> Terms:
    """What one stage adds; `turns` stages share a position."""
    m = microbatches
    work, messages = stage.work, stage.messages
    # What the last microbatch adds to gradients delays its way back, but for where that is done apart.
    apart = schedule == "zero-bubble"
    adding = stage.accumulate if m > 1 and not apart else 0.0
    fill, steady, turn = work + adding + messages, 0.0, 0.0
    chained = stage.tied + (stage.scattered if turns == 1 else 0.0)
    tail = stage.tail - chained
    if m > 1:
        stalled = stalls(schedule, positions, m) * messages / turns
        steady = (m - 2) * (work + adding) + stage.last_forward + stage.last_backward
        steady += apart * (m - 1) * stage.accumulate
        turn, steady = steady / turns + stalled, steady + stalled
    if turns > 1:
        later = 1 - 1 / turns
        return Terms(fill / turns + chained, steady + later * (work + adding), tail, later * fill, turn)
    if schedule == "zero-bubble":
        hidden = _hidden(stage, positions, m)
        return Terms(fill - hidden + chained, steady + hidden, tail)
    return Terms(fill + chained, steady, tail)


def step_seconds(
    stages: Sequence[StageCost], schedule: str, *, positions: int, microbatches: int, fixed: float = 0.0
) -> float:
    """The step time of stages in order; stage s sits at position s % positions."""
    turns = len(stages) // positions
    # Of most stages there is another that costs the very same.
    known = {
        id(s): terms(s, schedule, positions=positions, turns=turns, microbatches=microbatches)
        for s in {id(s): s for s in stages}.values()
    }
    parts = [known[id(s)] for s in stages]
    places = [slice(position, None, positions) for position in range(positions)]

    def most(each: Sequence[float]) -> float:
        return max([sum(each[at]) for at in places])

    steady = most([part.steady for part in parts])
    if turns > 1:
        steady = max(steady, sum([part.rounds for part in parts]) + most([part.turn for part in parts]))
    return sum([part.fill for part in parts]) + steady + most([part.tail for part in parts]) + fixed


def waits_between_turns(stages: Sequence[StageCost], positions: int, microbatches: int) -> float:
    """About the most seconds that positions whose work differs turn by turn wait for each other.

    Whole turns of the slowest at each, against all turns of the slowest position: which of them a step takes depends on
    how far positions run ahead of each other, about one microbatch from each to the next. Beside it what a turn that
    is longer at all of them keeps each from the next, once; and where microbatches are no more than positions, for the
    first of which the next turn waits, how much sooner than taken for a last one that is small is done.
    """
    if len(stages) == positions:
        return 0.0
    each = [stage.work + stage.accumulate for stage in stages]
    turns = [each[at : at + positions] for at in range(0, len(each), positions)]
    whole = sum([max(turn) for turn in turns]) - max([sum(each[at::positions]) for at in range(positions)])
    longer = max([sum(turn) for turn in turns]) / positions - sum(each) / len(each)
    sooner = max([stage.work - stage.last_forward - stage.last_backward for stage in stages])
    hurried = sooner * (1 - 1 / len(turns)) if microbatches <= positions else 0.0
    return (microbatches - 1) * whole + (positions - 1) * longer + hurried


def waits_between_passes(stages: Sequence[StageCost], schedule: str, microbatches: int) -> float:
    """Seconds by which the slowest position of `gpipe` is too fast: all forwards follow the slowest forward, then all
    backwards the slowest backward, which may be another stage's."""
    if schedule != "gpipe":
        return 0.0
    forward, backward = max([stage.forward for stage in stages]), max([stage.backward for stage in stages])
    return max(0, microbatches - 2) * (forward + backward - max([stage.work for stage in stages]))


def _hidden(stage: StageCost, positions: int, microbatches: int) -> float:
    """Seconds of a stage's weight gradients that fill what would be bubble: its drain, and its warm-up if it can."""
    if positions == 1:
        return 0.0
    inner = stage.backward - stage.weight
    filling = min(1.0, (microbatches - 1) / (positions - 1))
    return stage.weight + filling * min(stage.weight, stage.forward, inner)
