"""The best plan of given positions whose shapes may differ: a dynamic program over stages with Pareto labels.

State: (first block of the next stage, its spot, devices used so far, grounds visited; with tied parameters also the
first spot). A label of a state is one way to get there: sum of fills, largest steady and largest tail so far. A label
that is nowhere below another one of its state is dropped: whatever follows, the other ends no worse. So is one whose
lower bound reaches the ceiling: with the rest of `Ways`, the larger of

    fill + sum of weight (steady + tail) + rest         fill + largest steady + largest tail + rest of the fills

Nothing else is, unless the search is told to keep few labels a stage; then it only serves to find a plan quickly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np

from placer.costs.timing.step import StageCost, Terms
from placer.strategies.inter_op.submeshes.path_bounds import Ways
from placer.strategies.inter_op.submeshes.run_arrays import Floats
from placer.strategies.inter_op.submeshes.stage_costs import Prices
from placer.strategies.inter_op.submeshes.submesh import Spot
from placer.strategies.space.outline import pinned_stage, stage_allowed


class State(NamedTuple):
    """Where the next stage begins: block, spot; devices used with it, grounds visited, the first spot."""

    first: int
    spot: Spot
    used: frozenset[int]
    visited: tuple[int, ...]
    lead: Spot


class Label(NamedTuple):
    """A way to a state: seconds so far (`weighted`: of weight times steady and tail), its last stage and the rest."""

    fill: float
    steady: float
    tail: float
    weighted: float
    state: State
    recompute: bool
    parent: Label | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """Spots, inner cuts and recompute of every stage, with the seconds of the step."""

    value: float
    spots: tuple[Spot, ...]
    cuts: tuple[int, ...]
    recompute: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResult:
    """The best below the ceiling, if any; `complete` where nothing better can exist; stages looked at."""

    best: Shaped | None
    complete: bool
    placed: int


class _After(NamedTuple):
    """Spots that may follow, with the grounds visited then; of each what it and the rest add, by first block."""

    spots: tuple[tuple[Spot, tuple[int, ...]], ...]
    whole: Floats
    fill: Floats


Frontier = dict[State, list[Label]]


@dataclass
class _Search:
    ways: Ways
    prices: Prices
    positions: int
    ceiling: float
    patience: int
    few: int
    placed: int = 0
    best: Label | None = None
    pinned: dict[int, int] = field(default_factory=dict)
    after: dict[tuple[Spot, tuple[int, ...], int], _After] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the patience or the seconds of the problem are over."""
        return self.placed >= self.patience or (self.placed % 64 == 0 and self.prices.problem.spent)


def best_labels(
    ways: Ways, prices: Prices, *, positions: int, ceiling: float, patience: int, few: int = 0
) -> LabelResult:
    """The best plan below `ceiling`; with `few` only so many labels of every stage are followed."""
    search = _Search(
        ways=ways, prices=prices, positions=positions, ceiling=ceiling, patience=patience, few=few,
        pinned=pinned_stage(prices.problem),
    )  # fmt: skip
    frontier, complete = _begun(search), not few
    for stage in range(positions):
        frontier, ended = _next(search, frontier, stage)
        if ended:
            complete = False
            break
    return LabelResult(best=_made(search), complete=complete, placed=search.placed)


def _begun(search: _Search) -> Frontier:
    """A label for every first spot; which it is matters later only where parameters are tied."""
    grounds, tied = search.ways.floors.grounds, bool(search.prices.problem.graph.tied)
    firsts = ((grounds.spot(shape, ground), ground) for shape in search.ways.shapes for ground in grounds.after(()))
    found, lead = Frontier(), None
    for spot, ground in firsts:
        if spot is not None:
            lead = spot if tied or lead is None else lead
            state = State(0, spot, frozenset(spot.devices), (ground,), lead)
            found[state] = [Label(0.0, 0.0, 0.0, 0.0, state, False, None)]
    return found


def _next(search: _Search, frontier: Frontier, stage: int) -> tuple[Frontier, bool]:
    """The labels after one more stage; whether the search ended before all were made."""
    following: Frontier = {}
    for state, labels in frontier.items():
        for last in _ends(search, state, stage):
            for made, recompute in _stages(search, state, last, stage):
                if search.over:
                    return following, True
                search.placed += 1
                if stage + 1 == search.positions:
                    _finish(search, state, labels, made, recompute)
                else:
                    _extend(search, state, labels, last, stage, made, recompute, following)
    return (_fewest(search, following, stage + 1) if search.few else following), False


def _ends(search: _Search, state: State, stage: int) -> Iterator[int]:
    blocks, left = search.ways.floors.blocks, search.positions - stage - 1
    for last in range(state.first + 1, blocks - left + 1) if left else (blocks,):
        if stage_allowed(search.pinned, stage, state.first, last):
            yield last


def _stages(search: _Search, state: State, last: int, stage: int) -> Iterator[tuple[StageCost, bool]]:
    """The costs of a stage up to a block with each recompute choice that fits."""
    for again in search.prices.fitting(state.first, last, state.spot, stage, search.positions):
        yield search.prices.stage(state.first, last, state.spot, state.lead, again=again), again


def _finish(search: _Search, state: State, labels: list[Label], made: StageCost, recompute: bool) -> None:
    part = search.prices.terms(made, search.positions)
    fixed = search.ways.floors.costs(state.spot.shape).fixed(tuple(sorted(state.used)))
    for label in labels:
        value = label.fill + part.fill + max(label.steady, part.steady) + max(label.tail, part.tail) + fixed
        if value < search.ceiling:
            search.ceiling = value
            search.best = Label(value, 0.0, 0.0, 0.0, state, recompute, label)


def _extend(
    search: _Search, state: State, labels: list[Label], last: int, stage: int, made: StageCost, recompute: bool,
    following: Frontier,
) -> None:  # fmt: skip
    """Add what follows a stage that ends before block `last`."""
    prices, after = search.prices, _after(search, state, search.positions - stage - 1)
    if not after.spots:
        return
    rests = after.whole[:, last], after.fill[:, last]
    part = prices.terms(made, search.positions)
    near = np.min([_bound(search, label, part, state, rests) for label in labels], axis=0)
    for index in np.flatnonzero(near < search.ceiling):
        spot, visited = after.spots[index]
        if not prices.crosses(last, state.spot.shape, spot.shape):
            continue
        sent = prices.sending(made, state.first, last, state.spot, spot, state.lead)
        whole = prices.terms(sent, search.positions)
        rest = float(rests[0][index]), float(rests[1][index])
        kept = [label for label in labels if _bound(search, label, whole, state, rest) < search.ceiling]
        if kept:
            begun = State(last, spot, state.used | frozenset(spot.devices), visited, state.lead)
            for label in kept:
                _insert(following.setdefault(begun, []), _extended(search, label, whole, state, begun, recompute))


def _after(search: _Search, state: State, left: int) -> _After:
    """What may follow a state, `left` stages before the end: on the same ground, or on one not visited yet."""
    key = state.spot, state.visited, left
    if key not in search.after:
        grounds, ways = search.ways.floors.grounds, search.ways
        found: list[tuple[Spot, tuple[int, ...]]] = []
        for ground in (state.spot.ground, *grounds.after(state.visited)):
            same = ground == state.spot.ground
            behind, visited = (max(state.spot.devices), state.visited) if same else (-1, (*state.visited, ground))
            own = (grounds.spot(shape, ground, behind) for shape in ways.shapes)
            found += [(spot, visited) for spot in own if spot is not None]
        rests = [_rest(search, spot, visited, left) for spot, visited in found]
        whole, fill = (np.array([rest[k] for rest in rests]) for k in (0, 1))
        search.after[key] = _After(tuple(found), whole, fill)
    return search.after[key]


def _rest(search: _Search, spot: Spot, visited: tuple[int, ...], left: int) -> tuple[Floats, Floats]:
    """What stages from a spot on add at least, by first block: fills with weighted steadies and tails, and fills."""
    devices = search.ways.floors.grounds.left(spot, visited)
    whole, fill = (search.ways.under(spot.shape, left, fill=alone)[:, devices] for alone in (False, True))
    return whole, fill


@overload
def _bound(search: _Search, label: Label, part: Terms, state: State, rest: tuple[float, float]) -> float: ...
@overload
def _bound(search: _Search, label: Label, part: Terms, state: State, rest: tuple[Floats, Floats]) -> Floats: ...
def _bound(
    search: _Search, label: Label, part: Terms, state: State, rest: tuple[float | Floats, float | Floats]
) -> float | Floats:
    """No plan with this label, this stage and that rest is faster."""
    weight = search.ways.floors.places.weight(state.spot)
    fill = label.fill + part.fill
    spread = fill + label.weighted + weight * (part.steady + part.tail) + rest[0]
    peaks = fill + max(label.steady, part.steady) + max(label.tail, part.tail) + rest[1]
    return np.maximum(spread, peaks)


def _extended(search: _Search, label: Label, part: Terms, state: State, after: State, recompute: bool) -> Label:
    weight = search.ways.floors.places.weight(state.spot)
    return Label(
        label.fill + part.fill,
        max(label.steady, part.steady),
        max(label.tail, part.tail),
        label.weighted + weight * (part.steady + part.tail),
        after,
        recompute,
        label,
    )


def _insert(labels: list[Label], made: Label) -> None:
    """Add `made` unless another is nowhere above it; drop those it is nowhere above."""
    if any(one.fill <= made.fill and one.steady <= made.steady and one.tail <= made.tail for one in labels):
        return
    labels[:] = [one for one in labels if made.fill > one.fill or made.steady > one.steady or made.tail > one.tail]
    labels.append(made)


def _fewest(search: _Search, frontier: Frontier, stage: int) -> Frontier:
    """The labels of the smallest bounds."""
    ranked: list[tuple[float, int, State, Label]] = []
    for state, labels in frontier.items():
        rests = _rest(search, state.spot, state.visited, search.positions - stage)
        whole, fill = (float(rest[state.first]) for rest in rests)
        for label in labels:
            least = label.fill + max(label.weighted + whole, label.steady + label.tail + fill)
            ranked.append((least, len(ranked), state, label))
    kept: Frontier = {}
    for _, _, state, label in sorted(ranked, key=lambda entry: entry[:2])[: search.few]:
        kept.setdefault(state, []).append(label)
    return kept


def _made(search: _Search) -> Shaped | None:
    if search.best is None:
        return None
    spots, firsts, recompute = [], [], []
    label: Label | None = search.best
    # A label knows the state it leads to; the last one stands for the last stage and keeps the state this begins in.
    while label is not None and label.parent is not None:
        recompute.append(label.recompute)
        label = label.parent
        spots.append(label.state.spot)
        firsts.append(label.state.first)
    return Shaped(
        value=search.ceiling, spots=tuple(reversed(spots)), cuts=tuple(reversed(firsts[:-1])),
        recompute=tuple(reversed(recompute)),
    )  # fmt: skip
