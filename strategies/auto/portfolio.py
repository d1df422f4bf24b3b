"""`auto`: every baseline and the exact search; the best estimate wins, so that no baseline is ever better.

What is best by estimate is played event by event before it wins: where that takes longer, the next best may.

On many devices another process runs the baselines beside the search, unless evaluations are counted.
Only the winner is lowered to see whether its communication holds; where a baseline's does not, it goes on to its next.
Out: the best plan, the bound of the exact search, and a table of runners-up with the reason why each lost. After an
interrupt, or when the budget is used up, what was found so far is returned.

With a budget each strategy gets a share of what is left (`SHARES`), the cheap ones a small one, the exact search half;
`local` has one before it too where seconds are given and devices differ, the batch stays whole, or the model branches.
Where that ends it before its proof is complete, or a graph of stages is faster than any chain, list schedulers and
`min_cut` are asked (list schedulers always, if the model branches or devices differ), and `local` goes on from the best
plans of all with the rest: in little time moves often find what a proof has no time for. Without a budget some thousand
moves are tried from the best plans where the model branches, as nothing is proven of its graphs of stages, of unlike
devices after `min_cut`; and where no plan of the exact search fits and none is proven not to, a few: they know stages
of which some blocks recompute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from placer.errors import Infeasible
from placer.plans.transfers import is_chain
from placer.search.judge import ROUNDING, Verdict, judge
from placer.search.played import step_seconds
from placer.search.problem import Ended, Problem, Solution, strategy
from placer.search.progress_line import tell
from placer.strategies.auto.shares import (
    BASELINES,
    BRANCH_TRIES,
    CUT_TRIES,
    CUTS,
    FIRST_MOVES,
    INSTEAD,
    LAST_TRIES,
    LISTS,
    MOVES,
    TIGHT,
    WHOLE_LISTS,
    WHOLE_MOVES,
    hurried,
    part,
)
from placer.strategies.auto.summary import summary
from placer.strategies.auto.tried import Tried, interrupted, legal_of, plans_of, tried, unended
from placer.strategies.background import MANY_DEVICES, Forked
from placer.strategies.baselines.standard import Baseline
from placer.strategies.inter_op.search import solve_roomy
from placer.strategies.space.block_graph import BlockGraph, branches_matter
from placer.strategies.space.device_orders import is_mixed
from placer.strategies.space.outline import whole_batch
from placer.strategies.space.parts import hurried_on_unlike
from placer.strategies.space.pin_conflicts import require_pins


class Portfolio:
    """Runs what exists within the budget."""

    name = "auto"
    exact = True

    def solve(self, problem: Problem) -> Solution | Infeasible:
        """The best plan of all strategies; what binds where none has one. Raises UsageError for contradicting pins."""
        require_pins(problem)
        many = problem.budget is None and problem.cluster.size >= MANY_DEVICES
        first = _first(problem)
        baselines = Forked(lambda: _each(problem, first), apart=many, kept=(problem.graph, problem.cluster))
        try:
            runs, ended = _all(problem, baselines)
        finally:
            baselines.close()
        try:
            _settle(problem, runs)
        except KeyboardInterrupt:
            ended = "interrupt"
        return summary(runs, ended)


def _all(problem: Problem, baselines: Forked[Tried]) -> tuple[list[Tried], Ended]:
    """What every strategy found, and what ended that early; raises KeyboardInterrupt where nothing is found by then."""
    runs: list[Tried] = []
    searches: list[Tried] = []
    try:
        if not baselines.apart:
            runs.extend(baselines)
        runs.extend(_first_moves(problem, runs))
        searches.extend(_each(problem, _searches(problem), before=runs))
        if baselines.apart:
            runs.extend(baselines.ready() if interrupted(searches) else baselines)
        searches = [each for run in searches for each in _roomier(problem, _uncut(problem, run), runs)]
        searches.extend(_last_tries(problem, [*runs, *searches]))
    except KeyboardInterrupt:
        runs.extend(baselines.ready())
        if not legal_of([*runs, *searches]):
            raise
        return [*runs, *searches], "interrupt"
    return [*runs, *searches], "" if searches else _over(problem, runs, _budget_left(problem, runs))


def _first(problem: Problem) -> tuple[str, ...]:
    """The baselines: list schedulers only where a model branches, since the exact search has all chains of stages, or
    where seconds may end that before it has those of unlike devices."""
    listed = BlockGraph.of(problem.graph).branches or hurried_on_unlike(problem)
    return tuple(name for name in BASELINES if listed or name != LISTS)


def _searches(problem: Problem) -> tuple[str, ...]:
    """What is searched after the baselines: branches on devices of their own only where there is much in them, other
    things only where a budget may end the exact search; of these the engines of cuts know seconds alone."""
    names = ["stages", *(["horizontal"] if _branches(problem) else [])]
    if problem.budget is not None or problem.until is not None:
        names += [LISTS] if LISTS not in _first(problem) else []
        names += [CUTS] if problem.until is not None else []
        names += [MOVES]
    return tuple(names)


def _branches(problem: Problem) -> bool:
    """Whether much of the model may stand beside each other, so that a graph of stages may be faster than any chain."""
    return problem.pins.schedule in (None, "branched") and branches_matter(problem.graph)


def _first_moves(problem: Problem, runs: list[Tried]) -> Iterator[Tried]:
    """What moves make of the baselines in a part of the seconds, where these may end the exact search before it has
    much of unlike devices, of a batch that stays whole, or of branches, of whose graphs of stages it proves nothing."""
    whole = problem.until is not None and whole_batch(problem)
    branches = problem.until is not None and _branches(problem)
    if not (hurried_on_unlike(problem) or whole or branches) or problem.spent:
        return
    name = WHOLE_MOVES if whole else FIRST_MOVES
    yield unended(tried(MOVES, part(replace(problem, known_plans=plans_of(runs)), name)))


def _each(problem: Problem, names: Sequence[str], before: Sequence[Tried] = ()) -> Iterator[Tried]:
    """The runs of these strategies until something ends the search."""
    runs = list(before)
    for name in names:
        left = _budget_left(problem, runs)
        if _over(problem, runs, left):
            return
        strategy(name)  # imports take seconds too, which are nobody's share
        wanted = name not in INSTEAD or "stages" not in names or not _proven(problem, runs)
        if wanted and not hurried(problem, name):
            own = WHOLE_LISTS if name == LISTS and whole_batch(problem) else name  # with layouts, which take long
            runs.append(tried(name, part(replace(problem, budget=left, known_plans=plans_of(runs)), own)))
            yield runs[-1]


def _uncut(problem: Problem, run: Tried) -> Tried:
    """What the exact search found; where branches make of it a graph of stages, which it ranks as if they were a chain,
    the better one of that and of what it finds where no op is cut."""
    pins, best = problem.pins, run.verdict
    free = problem.budget is None and problem.until is None and not any(degree for _, degree in pins.axes)
    if run.name != "stages" or best is None or not free or is_chain(best.plan) or interrupted([run]):
        return run
    if all(stage.degree == 1 for stage in best.plan.stages) or isinstance(run.found, Infeasible):
        return run
    other = tried("stages", replace(problem, pins=replace(pins, tensor=1)))
    if isinstance(other.found, Infeasible) or other.verdict is None or other.verdict.order >= best.order:
        return run
    both = other.evaluations + run.evaluations
    found = replace(other.found, bound=run.found.bound, left_out=run.found.left_out, evaluations=both)
    return replace(other, found=found)


def _roomier(problem: Problem, run: Tried, others: Sequence[Tried]) -> list[Tried]:
    """What the exact search found; where the best plan fills a good part of a device, so that faster ones may not have
    fitted, first what is better under layouts that hold less. Either may not hold when it is settled."""
    legal = legal_of([run, *others])
    free = problem.budget is None and problem.until is None
    if run.name != "stages" or isinstance(run.found, Infeasible) or not (legal and free) or interrupted([run]):
        return [run]
    best = min((verdict for verdict, _ in legal), key=lambda verdict: verdict.order)
    if not _tight(best):
        return [run]
    tell(phase="layouts that hold less")
    found = solve_roomy(problem, best)
    bound = _bound_of_both(run.found, found, best)
    ended, evaluations = run.found.ended or found.ended, run.evaluations + found.evaluations
    known = replace(run.found, bound=bound, ended=ended, evaluations=evaluations)
    kept = replace(run, found=known)
    if found.plan is best.plan:
        return [kept]
    verdict = judge(problem.costs, found.plan, lowered=False)
    return [replace(run, found=replace(known, plan=found.plan, evaluations=0), verdict=verdict), kept]


def _bound_of_both(stages: Solution, roomy: Solution, best: Verdict) -> float | None:
    """What is proven of the plans of both searches; of a better plan that neither found, which is of another kind and
    below what is proven of the first, the second proves no more than that it found none."""
    if stages.bound is None or roomy.bound is None:
        return None
    if roomy.plan is best.plan and best.seconds < stages.bound * (1 - ROUNDING):
        return stages.bound
    return min(stages.bound, roomy.bound)


def _tight(verdict: Verdict) -> bool:
    """Whether a plan fills more than `TIGHT` of a device."""
    devices = verdict.plan.cluster.devices
    sizes = (min(devices[device].memory_bytes for device in mesh.devices) for mesh in verdict.plan.meshes)
    return any(held.total > TIGHT * size for held, size in zip(verdict.ledger.memory, sizes, strict=True))


def _last_tries(problem: Problem, runs: list[Tried]) -> Iterator[Tried]:
    """A plan by a few moves, where no budget has moves of its own: from the best plans where nothing is proven of some
    that the model has, of unlike devices after cuts and moves from these alone; from none where nothing is legal and
    the exact search, ended by nothing, has not proven that."""
    near = any(isinstance(run.found, Infeasible) and run.found.near for run in runs)
    graphs = problem.until is None and BlockGraph.of(problem.graph).branches and not _proven(problem, runs)
    legal, mixed = bool(legal_of(runs)), is_mixed(problem.cluster)
    names = (CUTS, MOVES) if legal and graphs and mixed else (MOVES,)
    most = BRANCH_TRIES * graphs if legal else LAST_TRIES * near
    if not most or problem.budget is not None:
        return
    for name in names:
        if problem.spent or interrupted(runs):
            return
        tries = (CUT_TRIES, ()) if name == CUTS else (most, plans_of(runs))
        run = unended(tried(name, replace(problem, budget=tries[0], known_plans=tries[1])))
        if isinstance(run.found, Solution):
            runs = [*runs, run]
            yield run


def _proven(problem: Problem, runs: Sequence[Tried]) -> bool:
    """Whether no budget ended a search before its proof was complete, or before it found anything, and it is about the
    best plan and all that may be better."""
    best = min((verdict for verdict, _ in legal_of(runs)), key=lambda verdict: verdict.order, default=None)
    ended = any(
        run.found.ended in ("evaluations", "seconds") if isinstance(run.found, Solution) else run.name == "stages"
        for run in runs
    )
    return not (ended or _branches(problem)) and (best is None or is_chain(best.plan))


def _over(problem: Problem, runs: list[Tried], left: int | None) -> Ended:
    """What ends the search now: no evaluation left, or the seconds over and some plan found."""
    if interrupted(runs):
        return "interrupt"
    if left is not None and left <= 0:
        return "evaluations"
    return "seconds" if problem.spent and legal_of(runs) else ""


def _settle(problem: Problem, runs: list[Tried]) -> None:
    """Judge the best of all in full and have it played; where it does not hold, its run anew or as lost, then the best
    of what there is now."""
    while legal := legal_of(runs):
        best, winner = min(legal, key=lambda entry: entry[1].order)
        if winner.played is not None:
            return
        verdict = judge(problem.costs, best.plan)
        anew = isinstance(strategy(winner.name), Baseline) and not verdict.legal
        settled = replace(winner, verdict=verdict)
        if verdict.legal:
            settled = replace(winner, played=step_seconds(problem, best.plan))
        runs[runs.index(winner)] = tried(winner.name, problem, lowered=True) if anew else settled


def _budget_left(problem: Problem, runs: list[Tried]) -> int | None:
    if problem.budget is None:
        return None
    return problem.budget - sum(run.evaluations for run in runs)
