"""Exact cuts for several even stages per position, where blocks repeat: a dynamic program over positions.

Every stage has q blocks or q + 1. Where all runs of a length inside the model cost the same, it does not matter where
an inner stage begins, only how long it is, and positions are independent but for the number of longer stages:

    minimise  sum over positions of fill  +  max over positions of steady  +  max over positions of tail
              or, where that is more, with the sum of rounds and the longest turn in place of the longest steady
    where     the longer stages of all positions are as many as the blocks demand,

each position taking one of its `PositionChoice`s: which of its turns are longer, which recompute, within its memory. A
label is a way to have chosen for the first positions; one that is nowhere below another with as many longer stages is
dropped, and one whose bound reaches the ceiling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from operator import le
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placer.io.memo import once
from placer.plans.plan import Recompute
from placer.strategies.inter_op.partition.chain_dp import StageCuts
from placer.strategies.inter_op.partition.interleaved_branch_bound import Interleaved, InterleavedOption

# Whether it is longer, and what it adds.
_Turn: TypeAlias = tuple[int, InterleavedOption]


class _Terms(NamedTuple):
    """Seconds by the terms of the step: of a position, or of those so far."""

    fill: float = 0.0
    steady: float = 0.0
    tail: float = 0.0
    rounds: float = 0.0
    turn: float = 0.0

    @property
    def value(self) -> float:
        """The step of what has no other positions."""
        return self.fill + max(self.steady, self.rounds + self.turn) + self.tail

    def beside(self, other: _Terms) -> _Terms:
        """Both together."""
        return _Terms(
            self.fill + other.fill, max(self.steady, other.steady), max(self.tail, other.tail),
            self.rounds + other.rounds, max(self.turn, other.turn),
        )  # fmt: skip

    def nowhere_above(self, other: _Terms) -> bool:
        """Whether the other ends no better, whatever follows."""
        return all(map(le, self, other))


class PositionChoice(NamedTuple):
    """What a position may do: seconds, and per turn whether it is longer and whether it recomputes."""

    terms: _Terms
    longer: tuple[int, ...]
    recompute: tuple[Recompute, ...]


class _PartialChoice(NamedTuple):
    terms: _Terms
    chosen: tuple[PositionChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnChoices:
    """Every way to take one of the `pieces` of each turn: a row of all arrays.

    kept, largest: bytes beside the state on each replica. `known` are the options
    of the ways that fit, by which these are.
    """

    pieces: tuple[tuple[_Turn, ...], ...]
    taken: NDArray[np.int64]
    seconds: NDArray[np.float64]
    state: NDArray[np.float64]
    ending: NDArray[np.float64]
    kept: tuple[NDArray[np.float64], ...]
    largest: tuple[NDArray[np.float64], ...]
    known: dict[bytes, list[PositionChoice]] = field(default_factory=dict)


def best_repeating(loop: Interleaved, *, ceiling: float) -> StageCuts | None:
    """The best partition with a value below `ceiling`, of blocks whose inner runs of one length are all alike."""
    blocks, stages = len(loop.fill_bounds) - 1, loop.positions * loop.turns
    size, more = divmod(blocks, stages)
    ways = cache(_ways)
    options = []
    for position in range(loop.positions):
        pieces = tuple(tuple(_pieces(loop, position, turn, size, more > 0)) for turn in range(loop.turns))
        if not all(pieces):
            return None
        options.append(_options(loop, position, ways(pieces)))
    if not all(options):
        return None
    rest = [_Terms()]
    for own in reversed(options):
        fill, rounds = (min(each) for each in zip(*((one.terms.fill, one.terms.rounds) for one in own), strict=True))
        rest.append(rest[-1].beside(_Terms(fill=fill, rounds=rounds)))
    frontier = {0: [_PartialChoice(_Terms(), ())]}
    for position, own in enumerate(options):
        left = loop.positions - position - 1
        frontier = _next(frontier, own, (more - left * loop.turns, more), rest[left], ceiling)
    found = min(frontier.get(more, ()), key=lambda label: label.terms.value, default=None)
    return None if found is None else _cuts(loop, found, size)


def _options(loop: Interleaved, position: int, ways: _TurnChoices) -> list[PositionChoice]:
    """What fits a position, without what is nowhere below another with as many longer turns."""
    rooms = loop.rooms[position]
    peaks = np.array(loop.peaks[position]).T
    fits = np.ones(len(ways.taken), dtype=bool)
    for room, kept, largest in zip(rooms, ways.kept, ways.largest, strict=True):
        fits &= ways.state + np.maximum(ways.ending, largest + (kept @ peaks).max(axis=1)) <= room
    return once(ways.known, fits.tobytes(), _undominated, ways, fits)


def _undominated(ways: _TurnChoices, fits: NDArray[np.bool_]) -> list[PositionChoice]:
    found = [_option(ways, row) for row in np.flatnonzero(fits).tolist()]
    kept: dict[int, list[PositionChoice]] = {}
    for option in sorted(found, key=_order):
        alike = kept.setdefault(sum(option.longer), [])
        if not any(other.terms.nowhere_above(option.terms) for other in alike):
            alike.append(option)
    return [option for alike in kept.values() for option in alike]


def _order(option: PositionChoice) -> tuple[object, ...]:
    return option.terms.value, option.longer, tuple(map(str, option.recompute))


def _option(ways: _TurnChoices, row: int) -> PositionChoice:
    taken = [pieces[n] for pieces, n in zip(ways.pieces, ways.taken[row].tolist(), strict=True)]
    longer, recompute = tuple(more for more, _ in taken), tuple(piece.recompute for _, piece in taken)
    return PositionChoice(_Terms(*ways.seconds[row].tolist()), longer, recompute)


def _ways(pieces: tuple[tuple[_Turn, ...], ...]) -> _TurnChoices:
    """All of them."""
    ways = np.array(list(product(*(range(len(own)) for own in pieces))))
    *seconds, state = (_taken(pieces, ways, number).sum(axis=1) for number in _SUMMED)
    closing, updating = (_taken(pieces, ways, of) for of in (lambda piece: piece.closing, lambda piece: piece.updating))
    beside = [_beside(pieces, ways, replica) for replica in range(len(pieces[0][0][1].replicas))]
    return _TurnChoices(
        pieces=pieces, taken=ways, seconds=np.stack(seconds, axis=1), state=state,
        ending=np.maximum(closing.max(axis=1), updating.sum(axis=1)),
        kept=tuple(kept for kept, _ in beside), largest=tuple(largest for _, largest in beside),
    )  # fmt: skip


def _beside(
    pieces: tuple[tuple[_Turn, ...], ...], ways: NDArray[np.int64], replica: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes that each turn keeps a microbatch on a replica, and most bytes beside these."""
    kept = _taken(pieces, ways, lambda piece: piece.replicas[replica][0])
    return kept, _taken(pieces, ways, lambda piece: piece.replicas[replica][1]).max(axis=1)


def _taken(
    pieces: tuple[tuple[_Turn, ...], ...], ways: NDArray[np.int64], number: Callable[[InterleavedOption], float]
) -> NDArray[np.float64]:
    """A number of the pieces taken: a row for each way, a column for each turn."""
    columns = (np.array([number(piece) for _, piece in own], dtype=np.float64) for own in pieces)
    return np.stack([column[ways[:, turn]] for turn, column in enumerate(columns)], axis=1)


_SUMMED: tuple[Callable[[InterleavedOption], float], ...] = (
    lambda piece: piece.fill,
    lambda piece: piece.steady,
    lambda piece: piece.tail,
    lambda piece: piece.rounds,
    lambda piece: piece.turn,
    lambda piece: piece.state,
)


def _pieces(loop: Interleaved, position: int, turn: int, size: int, longer: bool) -> list[_Turn]:
    """What a turn may be, and whether it is longer; the first and last stage hold the ends, others any inner run."""
    blocks, stages = len(loop.fill_bounds) - 1, loop.positions * loop.turns
    stage = turn * loop.positions + position
    found: list[_Turn] = []
    for more in (0, 1) if longer else (0,):
        first = 0 if stage == 0 else blocks - size - more if stage == stages - 1 else 1
        found.extend((more, piece) for piece in loop.options(stage, first, first + size + more) or ())
    return found


def _next(
    frontier: dict[int, list[_PartialChoice]], options: list[PositionChoice], allowed: tuple[int, int], rest: _Terms,
    ceiling: float,
) -> dict[int, list[_PartialChoice]]:  # fmt: skip
    """The labels after one more position, whose number of longer stages lies within `allowed`; `rest` follows them at
    least."""
    following: dict[int, list[_PartialChoice]] = {}
    for used in sorted(frontier):
        for option in options:
            now = used + sum(option.longer)
            if allowed[0] <= now <= allowed[1]:
                for label in frontier[used]:
                    terms = label.terms.beside(option.terms)
                    if terms.beside(rest).value < ceiling:
                        _insert(following.setdefault(now, []), _PartialChoice(terms, (*label.chosen, option)))
    return following


def _insert(labels: list[_PartialChoice], made: _PartialChoice) -> None:
    """Add `made` unless another is nowhere above it; drop those it is nowhere above."""
    if not any(other.terms.nowhere_above(made.terms) for other in labels):
        labels[:] = [other for other in labels if not made.terms.nowhere_above(other.terms)]
        labels.append(made)


def _cuts(loop: Interleaved, label: _PartialChoice, size: int) -> StageCuts:
    cuts, recompute, reached = [], [], 0
    for turn in range(loop.turns):
        for option in label.chosen:
            reached += size + option.longer[turn]
            cuts.append(reached)
            recompute.append(option.recompute[turn])
    return StageCuts(value=label.terms.value, cuts=tuple(cuts[:-1]), recompute=tuple(recompute))
