"""The best plan of given positions whose submeshes may differ: a dynamic program over stages with Pareto labels.

State: (first block of the next stage, its placement, devices used so far, device classes visited; with tied parameters
also the first placement). A label of a state is one way to get there: sum of fills, largest steady and largest tail so
far. A label that is nowhere below another one of its state is dropped: whatever follows, the other ends no worse. So is
one whose lower bound reaches the ceiling: with the rest of `PathBounds`, the larger of

    fill + sum of weight (steady + tail) + rest         fill + largest steady + largest tail + rest of the fills

Nothing else is, unless the search is told to keep few labels a stage; then it only serves to find a plan quickly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placer.costs.timing.step import StageCost, Terms
from placer.io.memo import once
from placer.plans.plan import Recompute
from placer.strategies.engine.fronts import insert
from placer.strategies.inter_op.bounds.schedule import Floats
from placer.strategies.inter_op.submeshes.best_first import SubmeshPlan
from placer.strategies.inter_op.submeshes.path_bounds import PathBounds
from placer.strategies.inter_op.submeshes.stage_costs import SubmeshCosts
from placer.strategies.inter_op.submeshes.submesh import DeviceClasses, PlacedSubmesh
from placer.strategies.space.outline import pinned_stage, stage_allowed


class NextStage(NamedTuple):
    """Where the next stage begins: block, placement; devices used with it, classes visited, the first placement."""

    first: int
    placed: PlacedSubmesh
    used: frozenset[int]
    visited: tuple[int, ...]
    lead: PlacedSubmesh


class PartialPlan(NamedTuple):
    """A way to a state: seconds so far (`weighted`: of weight times steady and tail), its last stage and the rest."""

    fill: float
    steady: float
    tail: float
    weighted: float
    state: NextStage
    recompute: Recompute
    parent: PartialPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoResult:
    """The best below the ceiling, if any; `complete` where nothing better can exist; stages looked at."""

    best: SubmeshPlan | None
    complete: bool
    placed: int


class _Successors(NamedTuple):
    """Placements that may follow, with the classes visited then; of each what it and the rest add, by first block."""

    placements: tuple[tuple[PlacedSubmesh, tuple[int, ...]], ...]
    whole: Floats
    fill: Floats


Frontier = dict[NextStage, list[PartialPlan]]


@dataclass
class _StageSearch:
    paths: PathBounds
    costs: SubmeshCosts
    positions: int
    ceiling: float
    patience: int
    few: int
    placed: int = 0
    best: PartialPlan | None = None
    pinned: dict[int, int] = field(default_factory=dict)
    after: dict[tuple[PlacedSubmesh, tuple[int, ...], int], _Successors] = field(default_factory=dict)

    @property
    def classes(self) -> DeviceClasses:
        """The devices of each class."""
        return self.paths.bounds.places.device_classes

    def weight(self, state: NextStage) -> float:
        """The weight of the next stage in bounds."""
        return self.paths.bounds.places.weight(state.placed)

    @property
    def over(self) -> bool:
        """Whether the patience or the seconds of the problem are over."""
        return self.placed >= self.patience or (self.placed % 64 == 0 and self.costs.problem.spent)


def best_labels(
    paths: PathBounds, costs: SubmeshCosts, *, positions: int, ceiling: float, patience: int, few: int = 0
) -> ParetoResult:
    """The best plan below `ceiling`; with `few` only so many labels of every stage are followed."""
    search = _StageSearch(
        paths=paths, costs=costs, positions=positions, ceiling=ceiling, patience=patience, few=few,
        pinned=pinned_stage(costs.problem),
    )  # fmt: skip
    frontier, complete = _begun(search), not few
    for stage in range(positions):
        frontier, ended = _next(search, frontier, stage)
        if ended:
            complete = False
            break
    return ParetoResult(best=_made(search), complete=complete, placed=search.placed)


def _begun(search: _StageSearch) -> Frontier:
    """A label for every first placement; which it is matters later only where parameters are tied."""
    tied, visited = bool(search.costs.problem.graph.tied), search.classes.after(())
    firsts = (search.classes.placement(submesh, number) for submesh in search.paths.submeshes for number in visited)
    found, lead = Frontier(), None
    for placed in firsts:
        if placed is not None:
            lead = placed if tied or lead is None else lead
            state = NextStage(0, placed, frozenset(placed.devices), (placed.device_class,), lead)
            found[state] = [PartialPlan(0.0, 0.0, 0.0, 0.0, state, False, None)]
    return found


def _next(search: _StageSearch, frontier: Frontier, stage: int) -> tuple[Frontier, bool]:
    """The labels after one more stage; whether the search ended before all were made."""
    following: Frontier = {}
    for state, labels in frontier.items():
        for last in _ends(search, state, labels, stage):
            for made, recompute in _stages(search, state, last, stage):
                if search.over:
                    return following, True
                search.placed += 1
                if stage + 1 == search.positions:
                    _finish(search, state, labels, made, recompute)
                else:
                    _extend(search, state, labels, last, stage, made, recompute, following)
    return (_fewest(search, following, stage + 1) if search.few else following), False


def _ends(search: _StageSearch, state: NextStage, labels: list[PartialPlan], stage: int) -> Iterator[int]:
    """The blocks before which a stage may end, but for those whose bound, of no exact cost yet, reaches the ceiling."""
    devices = search.classes.left(state.placed, state.visited)
    whole, fill = (
        search.paths.by_end(state.placed.submesh, state.first, devices, search.positions - stage - 1, fill=alone)
        for alone in (False, True)
    )
    spread = min(label.fill + label.weighted for label in labels) + whole
    peaks = min(label.fill + label.steady + label.tail for label in labels) + fill
    for last in map(int, np.flatnonzero(np.maximum(spread, peaks) < search.ceiling)):
        if stage_allowed(search.pinned, stage, state.first, last):
            yield last


def _stages(search: _StageSearch, state: NextStage, last: int, stage: int) -> Iterator[tuple[StageCost, Recompute]]:
    """The costs of a stage up to a block with each recompute choice that fits."""
    for again in search.costs.fitting(state.first, last, state.placed, stage, search.positions):
        yield search.costs.stage(state.first, last, state.placed, state.lead, again=again), again


def _finish(
    search: _StageSearch, state: NextStage, labels: list[PartialPlan], made: StageCost, recompute: Recompute
) -> None:
    part = search.costs.terms(made, search.positions)
    fixed = search.paths.bounds.costs(state.placed.submesh).fixed(tuple(sorted(state.used)))
    for label in labels:
        value = label.fill + part.fill + max(label.steady, part.steady) + max(label.tail, part.tail) + fixed
        if value < search.ceiling:
            search.ceiling = value
            search.best = PartialPlan(value, 0.0, 0.0, 0.0, state, recompute, label)


def _extend(
    search: _StageSearch, state: NextStage, labels: list[PartialPlan], last: int, stage: int, made: StageCost,
    recompute: Recompute, following: Frontier,
) -> None:  # fmt: skip
    """Add what follows a stage that ends before block `last`."""
    costs, left = search.costs, search.positions - stage - 1
    after = once(search.after, (state.placed, state.visited, left), _after, search, state, left)
    if not after.placements:
        return
    rests, weight = (after.whole[:, last], after.fill[:, last]), search.weight(state)
    near = _nearest(labels, costs.terms(made, search.positions), weight, rests)
    for index in np.flatnonzero(near < search.ceiling):
        placed, visited = after.placements[index]
        if not costs.crosses(last, state.placed.submesh, placed.submesh):
            continue
        whole = costs.sending(made, state.first, last, state.placed, placed, positions=search.positions)
        rest = float(rests[0][index]), float(rests[1][index])
        kept = [label for label in labels if _bound(label, whole, weight, rest) < search.ceiling]
        if kept:
            begun = NextStage(last, placed, state.used | frozenset(placed.devices), visited, state.lead)
            for label in kept:
                insert(following.setdefault(begun, []), _extended(label, whole, weight, begun, recompute))


def _after(search: _StageSearch, state: NextStage, left: int) -> _Successors:
    """What may follow a state, `left` stages before the end: in the same device class, or in one not visited yet."""
    classes, own = search.classes, state.placed.device_class
    found: list[tuple[PlacedSubmesh, tuple[int, ...]]] = []
    for number in (own, *classes.after(state.visited)):
        behind, visited = (
            (max(state.placed.devices), state.visited) if number == own else (-1, (*state.visited, number))
        )
        placements = (classes.placement(submesh, number, behind) for submesh in search.paths.submeshes)
        found += [(placed, visited) for placed in placements if placed is not None]
    rests = [_rest(search, placed, visited, left) for placed, visited in found]
    whole, fill = (np.array([rest[k] for rest in rests]) for k in (0, 1))
    return _Successors(tuple(found), whole, fill)


def _rest(search: _StageSearch, placed: PlacedSubmesh, visited: tuple[int, ...], left: int) -> tuple[Floats, Floats]:
    """What stages from a placement on add at least, by first block: fills with weighted steady and tail, and fills."""
    devices = search.classes.left(placed, visited)
    whole, fill = (search.paths.under(placed.submesh, left, fill=alone)[:, devices] for alone in (False, True))
    return whole, fill


def _nearest(labels: list[PartialPlan], part: Terms, weight: float, rests: tuple[Floats, Floats]) -> Floats:
    """Of each rest the least `_bound` of any of these labels."""
    ahead, behind, tails, weighted = np.array([label[:4] for label in labels]).T[:, :, None]
    fill = ahead + part.fill
    spread = fill + weighted + weight * (part.steady + part.tail) + rests[0]
    peaks = fill + np.maximum(behind, part.steady) + np.maximum(tails, part.tail) + rests[1]
    least: Floats = np.maximum(spread, peaks).min(axis=0)
    return least


def _bound(label: PartialPlan, part: Terms, weight: float, rest: tuple[float, float]) -> float:
    """No plan with this label, this stage of such a weight and that rest is faster."""
    fill = label.fill + part.fill
    spread = fill + label.weighted + weight * (part.steady + part.tail) + rest[0]
    return max(spread, fill + max(label.steady, part.steady) + max(label.tail, part.tail) + rest[1])


def _extended(label: PartialPlan, part: Terms, weight: float, after: NextStage, recompute: Recompute) -> PartialPlan:
    return PartialPlan(
        label.fill + part.fill,
        max(label.steady, part.steady),
        max(label.tail, part.tail),
        label.weighted + weight * (part.steady + part.tail),
        after,
        recompute,
        label,
    )


def _fewest(search: _StageSearch, frontier: Frontier, stage: int) -> Frontier:
    """The labels of the smallest bounds."""
    ranked: list[tuple[float, int, NextStage, PartialPlan]] = []
    for state, labels in frontier.items():
        rests = _rest(search, state.placed, state.visited, search.positions - stage)
        whole, fill = (float(rest[state.first]) for rest in rests)
        for label in labels:
            least = label.fill + max(label.weighted + whole, label.steady + label.tail + fill)
            ranked.append((least, len(ranked), state, label))
    kept: Frontier = {}
    for _, _, state, label in sorted(ranked, key=lambda entry: entry[:2])[: search.few]:
        kept.setdefault(state, []).append(label)
    return kept


def _made(search: _StageSearch) -> SubmeshPlan | None:
    if search.best is None:
        return None
    placements, firsts, recompute = [], [], []
    label: PartialPlan | None = search.best
    # A label knows the state it leads to; the last one stands for the last stage and keeps the state this begins in.
    while label is not None and label.parent is not None:
        recompute.append(label.recompute)
        label = label.parent
        placements.append(label.state.placed)
        firsts.append(label.state.first)
    return SubmeshPlan(
        value=search.ceiling, terms=search.paths.terms, placements=tuple(reversed(placements)),
        cuts=tuple(reversed(firsts[:-1])), recompute=tuple(reversed(recompute)),
    )  # fmt: skip
