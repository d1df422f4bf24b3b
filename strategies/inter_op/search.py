"""The exact search of cuts x devices x replication x microbatches x schedule x sharding x recompute.

In: a Problem. Out: the plan of the smallest estimate in the space of `space/outline.py`, with a proven lower bound.

Every outline (all choices but cuts and recompute) has lower bounds that hold for every cut: a quick one (`by_bound`),
whatever its device order and shares, and two nearer ones (`refined`), made when their turn comes, of unlike devices for
every device order and all shares. Outlines are solved exactly, the smallest bound first: by `chain_dp` where a position
has one stage, by `interleaved_dp` where it has several of repeating blocks, by `interleaved_branch_bound` of any
others, below the best value known, which even cuts give first. Plans whose positions have submeshes of their own are
searched after that (`submeshes`; on many devices `two_shapes`), those that may be faster than the best so far.
The search ends when the smallest bound left reaches the best plan, which is then optimal: bound and estimate are equal.
In a large space it ends when they are within a hundredth of each other; of unlike devices it then begins with the plans
of their fast parts alone, so that using the slow ones too never loses to leaving them out.
When the budget, the seconds, an interrupt or the patience of branch and bound ends it earlier, the smallest bound left
open is the bound; where the seconds end before every outline has its first bound, there is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush

from placer.costs.costs import Costs
from placer.costs.step_estimate import predicted_step
from placer.errors import Infeasible, UsageError
from placer.io.memo import once
from placer.plans.plan import Layout
from placer.plans.transfers import is_chain
from placer.search.judge import ROUNDING, Verdict, judge
from placer.search.problem import Ended, Problem, Solution
from placer.search.progress_line import tell
from placer.strategies.inter_op.bounds.by_bound import by_bound
from placer.strategies.inter_op.bounds.outline import OutlineBounds
from placer.strategies.inter_op.bounds.refined import RefinedBounds
from placer.strategies.inter_op.equivalence import PositionClasses, RangeClasses
from placer.strategies.inter_op.evened import evened
from placer.strategies.inter_op.infeasible import block_binds, uncut, what_binds
from placer.strategies.inter_op.partition.chain_dp import StageCuts, best_cuts
from placer.strategies.inter_op.partition.even import evenly_cut
from placer.strategies.inter_op.partition.every_cut import least_of_every_cut
from placer.strategies.inter_op.partition.interleaved_branch_bound import best_interleaved
from placer.strategies.inter_op.partition.interleaved_dp import best_repeating
from placer.strategies.inter_op.partition.stage_costs import OutlineCosts
from placer.strategies.inter_op.submeshes.search import SubmeshSearch
from placer.strategies.inter_op.submeshes.submesh import are_two_shapes
from placer.strategies.inter_op.submeshes.two_shapes.search import TwoShapeSearch
from placer.strategies.intra_op.layouts import halfway, layouts, pinned_degree, roomy_layouts
from placer.strategies.space.device_orders import DeviceOrder, Subcluster, fast_subclusters, is_mixed
from placer.strategies.space.left_out import left_out
from placer.strategies.space.outline import Outline, plan_of
from placer.strategies.space.pin_conflicts import require_pins
from placer.strategies.space.row_shares import with_devices

# Stages that branch and bound may place for one outline and in all: about a fifth of a second, and five.
PATIENCE = 4_000
PATIENCE_IN_ALL = 100_000
# With more outlines than this the search ends when so small a gap is proven.
LARGE, LARGE_GAP = 10_000, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _BestCuts:
    """The best cuts so far: `value` in seconds of a step."""

    value: float
    outline: Outline
    cuts: StageCuts


@dataclass
class _OutlineSearch:
    """What the search knows: outlines by their second bound or their nearest (True), the next by its first, the best
    cuts, bounds left open; `given` is the best plan of a part of the machines."""

    problem: Problem
    layouts: tuple[Layout, ...]
    bounds: dict[int, OutlineBounds]
    refined: dict[int, RefinedBounds]
    unlike: SubmeshSearch | TwoShapeSearch
    queue: list[tuple[float, bool, Outline]] = field(default_factory=list)
    next: tuple[float, Outline] | None = None
    best: _BestCuts | None = None
    given: Verdict | None = None
    open: list[float] = field(default_factory=list)
    evaluations: int = 0
    placed: int = 0
    whole: bool = True
    ended: Ended = ""
    places: dict[tuple[int, int, int, DeviceOrder], PositionClasses] = field(default_factory=dict)

    @cached_property
    def mixed(self) -> bool:
        """Whether devices may be ordered in more than one way."""
        return any(is_mixed(self.problem.cluster, bounds.ranges.costs.degree) for bounds in self.bounds.values())

    def layout(self, number: int) -> Layout | None:
        """The layout of a number; None of the model whole."""
        return self.layouts[number] if number >= 0 else None

    @property
    def least(self) -> float | None:
        """The smallest bound of what was not solved; None where nothing is left."""
        return min((entry[0] for entry in (self.next, *self.queue[:1]) if entry is not None), default=None)

    @property
    def ceiling(self) -> float:
        given = float("inf") if self.given is None else self.given.seconds
        return given if self.best is None else min(given, self.best.value)


class Stages:
    """Best-first over outlines, exact within each."""

    name = "stages"
    exact = True

    def __init__(self, *, shapes: bool = True) -> None:
        self.shapes = shapes

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan; without `shapes` of those whose positions are all alike. Where nothing fits, the best of more
        layouts (`roomy_layouts`).

        After an interrupt, the best so far with the bound proven so far.
        """
        require_pins(problem)
        search = _begun(problem, shapes=self.shapes)
        found = _best(search)
        if found is None:
            more = _over_roomy(problem, search.layouts)
            more.evaluations = search.evaluations
            found = _best(more) or _nothing(problem, (search, more))
        return found


def solve_roomy(problem: Problem, best: Verdict) -> Solution:
    """The best plan of the layouts that hold less on a device (`roomy_layouts`), or `best`, with a bound of both."""
    search = _over_roomy(problem, ())
    search.given = best
    found = _best(search)
    return found if isinstance(found, Solution) else Solution(plan=best.plan, bound=best.seconds)


def _best(search: _OutlineSearch) -> Solution | Infeasible | None:
    """What the search finds; None where that is proven to be nothing."""
    if not search.bounds or (search.whole and block_binds(search.problem, search.bounds.values()) is not None):
        return None
    try:
        _run(search)
    except KeyboardInterrupt:
        if search.ceiling == float("inf"):
            raise
        search.ended = "interrupt"
    if not search.whole:  # layouts that there was no time to make were not searched
        search.ended = search.ended or "seconds"
    if search.ceiling < float("inf"):
        return _solution(search)
    if search.ended:
        over = f"the {search.ended} of the budget were over before a plan was found"
        return Infeasible(binding=over, advice="Give it more")
    return None


def _nothing(problem: Problem, searches: Sequence[_OutlineSearch]) -> Infeasible:
    """Why searches found nothing."""
    views = [(bounds, search.layout(number)) for search in searches for number, bounds in search.bounds.items()]
    return what_binds(problem, views) if views else uncut(problem)


def _begun(problem: Problem, *, shapes: bool) -> _OutlineSearch:
    """The search with the costs of the model whole and under each layout the pins allow."""
    costs, limited = problem.costs, halfway(problem)
    found = layouts(limited, costs)
    views = {number: costs.under(layout) for number, layout in enumerate(found)}
    if pinned_degree(problem.pins) == 1:
        views = {-1: costs} | views
    return _over_views(problem, found, views, shapes=shapes, whole=not limited.spent)


def _over_roomy(problem: Problem, searched: Sequence[Layout]) -> _OutlineSearch:
    """The search of the layouts that hold less on a device, but for those that were searched."""
    costs, limited = problem.costs, halfway(problem)
    found = tuple(layout for layout in roomy_layouts(limited, costs) if layout not in searched)
    views = {number: costs.under(layout) for number, layout in enumerate(found)}
    return _over_views(problem, found, views, shapes=False, whole=not limited.spent)


def _over_views(
    problem: Problem, found: tuple[Layout, ...], views: dict[int, Costs], *, shapes: bool, whole: bool
) -> _OutlineSearch:
    """whole: whether these are all layouts that there are to try."""
    bounds = {number: OutlineBounds(problem, RangeClasses(problem, view)) for number, view in views.items()}
    refined = {number: RefinedBounds(own) for number, own in bounds.items()}
    own = {number: each.ranges for number, each in bounds.items()} if shapes else {}
    unlike = (TwoShapeSearch if are_two_shapes(problem) else SubmeshSearch)(problem=problem, layouts=found, views=own)
    return _OutlineSearch(problem=problem, layouts=found, bounds=bounds, refined=refined, unlike=unlike, whole=whole)


def _run(search: _OutlineSearch) -> None:
    """Solve outlines until none that is left can be better."""
    found = by_bound(search.bounds)
    if search.problem.spent:  # not all of them: what is found has no bound
        search.whole, search.ended = False, "seconds"
        return
    coarse, enough = found.outlines, 1 - LARGE_GAP if found.count > LARGE else 1.0
    search.next = next(coarse, None)
    if found.count > LARGE and search.mixed:
        _begin_with_parts(search)
    while (least := search.least) is not None and least < search.ceiling * enough:
        tell(best=search.ceiling, bound=least)
        if _over(search):
            return
        if search.next is not None and search.next[0] <= least:
            _place(search, search.next[1])
            search.next = next(coarse, None)
            continue
        bound, near, outline = search.queue[0]
        if near:
            _solve(search, bound, outline)
        heappop(search.queue)
        if not near:
            _narrow(search, bound, outline)
    _shape(search, enough)


def _shape(search: _OutlineSearch, enough: float) -> None:
    """Improve on the best so far by positions with submeshes of their own."""
    unlike = search.unlike
    while (bound := unlike.nearest) is not None and bound < search.ceiling * enough:
        tell(best=search.ceiling, bound=bound)
        if _over(search):
            return
        found = unlike.next(search.ceiling)
        search.evaluations += 1
        if found is not None:
            verdict = judge(search.problem.costs, unlike.plan(found))
            if not verdict.legal or verdict.seconds > found.value * (1 + ROUNDING):
                unlike.open.append(bound)  # what else there is of its kind was not looked at
            if verdict.legal and verdict.seconds < search.ceiling:
                search.given = verdict
                search.problem.found(verdict.seconds)


def _over(search: _OutlineSearch) -> bool:
    """Whether the budget or the seconds are over; says so."""
    if search.problem.budget is not None and search.evaluations >= search.problem.budget:
        search.ended = "evaluations"
    elif search.problem.spent:
        search.ended = "seconds"
    return bool(search.ended)


def _begin_with_parts(search: _OutlineSearch) -> None:
    """Plan the machines without the slowest class first: no plan of the whole is to lose to leaving it out."""
    for fast in tuple(fast_subclusters(search.problem.cluster))[-1:]:  # which begins with its own fast part
        problem = replace(_half(search.problem), cluster=fast.cluster, progress=None)
        try:
            require_pins(problem)
        except UsageError:  # pins that only the whole can honour
            continue
        part = _begun(problem, shapes=bool(search.unlike.views))
        try:
            if part.bounds:
                _run(part)
        finally:  # after an interrupt what was found counts
            _give(search, part, fast)


def _half(problem: Problem) -> Problem:
    """The problem with half of its budget: where a part took all of it, the bound of the whole would be its first."""
    now = time.perf_counter()
    return replace(
        problem,
        budget=None if problem.budget is None else max(1, problem.budget // 2),
        until=None if problem.until is None else now + (problem.until - now) / 2,
    )


def _give(search: _OutlineSearch, part: _OutlineSearch, fast: Subcluster) -> None:
    """Keep the best plan of a part of the machines as one of the whole."""
    search.evaluations += part.evaluations
    if part.ceiling < float("inf"):
        plan = fast.lifted(_solution(part).plan, search.problem.cluster)
        verdict = judge(search.problem.costs, plan)
        if verdict.legal and verdict.seconds < search.ceiling:
            search.given = verdict
            search.problem.found(verdict.seconds)


def _place(search: _OutlineSearch, outline: Outline) -> None:
    """Queue an outline with every device order and shares by its second bound, unless it holds no plan."""
    for made in _placed(search, outline):
        bound = search.refined[outline.layout].quick(made, _places(search, made))
        if bound < search.ceiling:
            heappush(search.queue, (bound, False, made))


def _narrow(search: _OutlineSearch, quick: float, outline: Outline) -> None:
    """Queue an outline by its nearest bound."""
    bound = search.refined[outline.layout].step(outline, _places(search, outline), search.ceiling)
    if bound < search.ceiling:
        heappush(search.queue, (max(quick, bound), True, outline))


def _placed(search: _OutlineSearch, outline: Outline) -> Iterator[Outline]:
    """The outline with every device order, and the shares it may have there."""
    costs = search.bounds[outline.layout].ranges.costs
    return with_devices(search.problem, outline, costs) if search.mixed else iter((outline,))


def _solve(search: _OutlineSearch, bound: float, outline: Outline) -> None:
    """Improve on the best so far within one outline; keep its bound where it stays open."""
    search.evaluations += 1
    costs = OutlineCosts(search.bounds[outline.layout], _places(search, outline), outline)
    if costs.rests.reached[0] > 0:
        return
    if outline.virtual == 1:
        _offer(search, costs, evenly_cut(costs))
        rests, inner = costs.rests, search.ceiling - costs.places.fixed
        stages = outline.stages
        found = best_cuts(stages=stages, options=costs.options, rests=rests, ceiling=inner)
        _offer(search, costs, found)
        return
    if _alike(costs):
        _offer(search, costs, best_repeating(costs.loop(), ceiling=search.ceiling - costs.places.fixed))
        return
    _offer(search, costs, evenly_cut(costs))
    patience = min(PATIENCE, PATIENCE_IN_ALL - search.placed)
    result = best_interleaved(costs.loop(), ceiling=search.ceiling - costs.places.fixed, patience=patience)
    search.placed += result.placed
    _offer(search, costs, result.cuts)
    if not result.complete:
        search.open.append(bound)


def _alike(costs: OutlineCosts) -> bool:
    """Whether the inner stages of an outline differ in their lengths only."""
    problem, lengths = costs.problem, costs.outline.lengths(len(costs.problem.graph.blocks))
    inner = range(1, len(problem.graph.blocks) - 1)
    grouped = any(costs.loop().grouped[block] for block in inner)
    return not (problem.pins.stage_of or grouped) and costs.ranges.alike(lengths)


def _offer(search: _OutlineSearch, costs: OutlineCosts, cuts: StageCuts | None) -> None:
    """Keep `cuts` if they are better than the best so far.

    They are the best of their outline by the closed form. A plan whose estimate is above that (what skips stages waits
    for ways, turns that differ for each other, passes for their slowest position) leaves it open where other cuts may
    be as fast.
    """
    if cuts is None or cuts.value + costs.places.fixed >= search.ceiling:
        return
    closed = cuts.value + costs.places.fixed
    value = max(closed, _played(search, costs.outline, cuts, closed))
    if value > closed:
        least = least_of_every_cut(search.problem, costs.outline, search.layout(costs.outline.layout)) or closed
        if least < value * (1 - ROUNDING):
            search.open.append(max(closed, least))
    if value < search.ceiling:
        search.best = _BestCuts(value=value, outline=costs.outline, cuts=cuts)
        search.problem.found(value)


def _played(search: _OutlineSearch, outline: Outline, cuts: StageCuts, closed: float) -> float:
    """Seconds of a plan whose order the estimate plays, or whose stages may want buckets of unlike sizes (see
    `gradient_buckets`); of others those of the closed form."""
    problem, cluster = search.problem, search.problem.cluster
    nodes_first = outline.stages > 1 and len(cluster.nodes) > 1 and any(d.backend == "cpu" for d in cluster.devices)
    if not (problem.graph.skips or outline.virtual > 1 or outline.schedule == "gpipe" or nodes_first):
        return closed
    plan = plan_of(problem, outline, cuts.cuts, cuts.recompute, search.layout(outline.layout))
    seconds = predicted_step(problem.costs, plan)
    return seconds if is_chain(plan) and seconds > closed * (1 + ROUNDING) else closed


def _solution(search: _OutlineSearch) -> Solution:
    """The best plan, judged, with the smallest bound of all that was not looked at to the end."""
    best, verdict = search.best, search.given
    if best is not None and best.value <= search.ceiling:
        costs, layout = search.bounds[best.outline.layout].ranges.costs, search.layout(best.outline.layout)
        verdict = evened(search.problem, best.outline, costs, best.cuts, layout)
    assert verdict is not None
    left = [*search.open, *(each for each in (search.least, search.unlike.least) if each is not None)]
    # Cuts are found as if each stage waited for the one before it: of a plan that is faster nothing is proven.
    proven = search.whole and is_chain(verdict.plan)
    bound = min([verdict.seconds, *left]) if proven else None
    return Solution(
        plan=verdict.plan, bound=bound, left_out=left_out(search.problem), evaluations=search.evaluations,
        ended=search.ended,
    )  # fmt: skip


def _places(search: _OutlineSearch, outline: Outline) -> PositionClasses:
    key = (outline.positions, outline.replicas, outline.degree, outline.device_order)
    costs = search.bounds[outline.layout].ranges.costs
    return once(search.places, key, PositionClasses, search.problem, costs, outline)
