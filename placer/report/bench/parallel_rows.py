"""Rows of `placer bench parallel`: turns of a way on a number of processes, summed up.

    step       median over rounds of the mean seconds of a step
    speed_up   rows a second over those of the same way on one process: rows_n / step_n / (rows_1 / step_1)
    exposed    median over rounds of step - step of the same rows and library without communication, in the same round:
               sums that computation did not hide, waiting for the slowest, and what the wrapper itself does
    total      seconds of all its turns
    apart      largest difference of its losses from those of one process on the whole batch, over the latter

Intervals hold 95% of the medians of rounds drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from placer.report.bench.turns import Turn

SAMPLES, SHARE = 1000, 0.95
# float32 sums in another order; a gradient summed instead of averaged is off by more at the second step.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Compares:
    """What of a way is compared with what: the way without communication, and whether losses are one process's."""

    name: str
    without: str = ""
    agrees: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and where 95% of resampled ones lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A way on a number of processes; None where there is nothing to say. reason: why it did not run."""

    model: str
    way: str
    ranks: int
    step: Spread | None = None
    speed_up: Spread | None = None
    exposed: Spread | None = None
    setup_seconds: float = 0.0
    total_seconds: float = 0.0
    accuracies: tuple[float, ...] = ()
    epoch_seconds: tuple[float, ...] = ()
    apart: float | None = None
    agrees: bool = True
    reason: str = ""

    @property
    def wrong(self) -> bool:
        """Whether losses are not those that they have to be."""
        return self.agrees and self.apart is not None and not self.apart <= TOLERANCE


def rows_of(turns: Iterable[Turn], ways: Sequence[Compares], reference: str) -> list[Row]:
    """A row of each way on each number of processes of each model that there are turns of, in the order of ways."""
    by_key: dict[tuple[str, int, str], list[Turn]] = {}
    for turn in turns:
        by_key.setdefault((turn.model, turn.ranks, turn.way), []).append(turn)
    cells = dict.fromkeys((model, ranks) for model, ranks, _ in by_key)
    return [
        _row(by_key, model, ranks, one, reference)
        for model, ranks in cells
        for one in ways
        if (model, ranks, one.name) in by_key
    ]


def _row(by_key: dict[tuple[str, int, str], list[Turn]], model: str, ranks: int, one: Compares, reference: str) -> Row:
    own = by_key[model, ranks, one.name]
    reason = next((turn.reason for turn in own if turn.reason), "")
    timed = _timed(own)
    if not timed:
        return Row(model=model, way=one.name, ranks=ranks, reason=reason or "no turn of it has ended")
    first = _timed(by_key.get((model, 1, one.name), []))
    bare = _timed(by_key.get((model, ranks, one.without), []))
    judge = _timed(by_key.get((model, ranks, reference), []))
    epochs = next((turn for turn in own if turn.accuracies), None)
    return Row(
        model=model, way=one.name, ranks=ranks, reason=reason, agrees=one.agrees,
        step=spread(timed, timed, lambda turn, _: turn.step_seconds),
        speed_up=spread(timed, first, _speed_up),
        exposed=spread(timed, bare, lambda turn, other: turn.step_seconds - other.step_seconds),
        setup_seconds=median(turn.setup_seconds for turn in timed.values()),
        total_seconds=sum(turn.total_seconds for turn in own),
        accuracies=epochs.accuracies if epochs else (), epoch_seconds=epochs.epoch_seconds if epochs else (),
        apart=_apart(timed, judge),
    )  # fmt: skip


def _timed(turns: Iterable[Turn]) -> dict[int, Turn]:
    """The turns of rounds that ended, by round."""
    return {turn.round: turn for turn in turns if not turn.reason and turn.round >= 0}


def _speed_up(own: Turn, alone: Turn) -> float:
    return own.rows / own.step_seconds / (alone.rows / alone.step_seconds)


def spread(own: dict[int, Turn], other: dict[int, Turn], value: Callable[[Turn, Turn], float]) -> Spread | None:
    """Of a value of the turns of the same rounds; None without any."""
    found = [value(own[number], other[number]) for number in sorted(own.keys() & other.keys())]
    if not found:
        return None
    draw = Random(0)
    made = sorted(median(draw.choices(found, k=len(found))) for _ in range(SAMPLES))
    edge = round((1 - SHARE) / 2 * SAMPLES)
    return Spread(value=median(found), low=made[edge], high=made[-1 - edge])


def _apart(own: dict[int, Turn], judge: dict[int, Turn]) -> float | None:
    """None where there is nothing to compare with; infinite for a loss that is not a number."""
    found = [
        abs(mine - theirs) / max(abs(theirs), 1e-12)
        for number in own.keys() & judge.keys()
        for mine, theirs in zip(own[number].losses, judge[number].losses, strict=True)
    ]
    return max((one if one == one else float("inf") for one in found), default=None)
