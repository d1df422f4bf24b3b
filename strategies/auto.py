"""`auto`: every baseline and the exact search; the best estimate wins, so that no baseline is ever better.

What is best by estimate is played event by event before it wins: where that takes longer, the next best may.

On many devices another process runs the baselines beside the search, unless evaluations are counted.
Only the winner is lowered to see whether its communication holds; where a baseline's does not, it goes on to its next.
Out: the best plan, the bound of the exact search, and a table of runners-up with the reason why each lost. After an
interrupt, or when the budget is used up, what was found so far is returned.

With a budget each strategy gets a share of what is left (`SHARES`), the cheap ones a small one, the exact search half.
Where that ends it before its proof is complete, or a graph of stages is faster than any chain, list schedulers and
`min_cut` are asked (list schedulers always, if the model branches or devices differ), and `local` goes on from the best
plans of all with the rest: in little time moves often find what a proof has no time for. Without a budget some thousand
moves are tried from the best plans where the model branches, as nothing is proven of its graphs of stages, of unlike
devices after `min_cut`; and where no plan of the exact search fits and none is proven not to, a few: they know stages
of which some blocks recompute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placer.errors import Infeasible
from placer.plans.plan import Alternative, Plan
from placer.plans.transfers import is_chain
from placer.search.judge import ROUNDING, Verdict, judge
from placer.search.played import step_seconds
from placer.search.problem import Ended, Problem, Solution, strategy
from placer.search.progress_line import tell
from placer.search.slower import why_slower
from placer.strategies.background import MANY_DEVICES, Forked
from placer.strategies.baselines.standard import Baseline
from placer.strategies.inter_op.search import solve_roomy
from placer.strategies.space.block_graph import BlockGraph, branches_matter
from placer.strategies.space.device_orders import is_mixed
from placer.strategies.space.parts import hurried_on_unlike
from placer.strategies.space.pin_conflicts import require_pins

MOVES = "local"
LISTS, CUTS = "lists", "min_cut"
BASELINES = ("single", "data", "sharded", "even", LISTS, "megatron")
# What is asked within a budget, and only where the exact search proves nothing of the best plan.
INSTEAD = (LISTS, CUTS, MOVES)
# Of what is left of a budget the share that a strategy may use: what comes after it has the rest. (What baselines find
# is there after hundredths of a second or plans; a model of many classes of blocks has dear layouts, though.)
SHARES = {LISTS: 1 / 6, "megatron": 1 / 4, CUTS: 1 / 5, "stages": 1 / 2, "horizontal": 1 / 2}
# Plans that moves may look at where the exact search knows none that fits.
LAST_TRIES = 128
# Plans that moves may look at where a model branches and nothing is proven of its graphs of stages: about as dear as
# what was searched before. (Of `two_towers` and `dlrm` of `examples.branching` on h100x8 a thousand leave 9 and 7%.)
BRANCH_TRIES = 3_000
# The part of a device above which memory may have kept a faster plan from fitting: one of fewer stages holds more.
TIGHT = 0.75
# Seconds below which a strategy is not asked: its first answer takes longer.
LEAST = {CUTS: 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What one strategy found, judged again; `verdict` is not on communication before `_settle`.

    played: seconds of its step, where `_settle` had it played event by event.
    """

    name: str
    found: Solution | Infeasible
    verdict: Verdict | None
    played: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds of a step of what it found, as far as is known."""
        assert self.verdict is not None
        return self.verdict.seconds if self.played is None else self.played

    @property
    def order(self) -> tuple[float, int, int, int, int, str]:
        """What results are compared by."""
        assert self.verdict is not None
        return (self.seconds, *self.verdict.order[1:])

    @property
    def evaluations(self) -> int:
        """Plans it looked at."""
        return 1 if isinstance(self.found, Infeasible) else self.found.evaluations


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
        return _summary(runs, ended)


def _all(problem: Problem, baselines: Forked[_Result]) -> tuple[list[_Result], Ended]:
    """What every strategy found, and what ended that early; raises KeyboardInterrupt where nothing is found by then."""
    runs: list[_Result] = []
    searches: list[_Result] = []
    try:
        if not baselines.apart:
            runs.extend(baselines)
        searches.extend(_each(problem, _searches(problem), before=runs))
        if baselines.apart:
            runs.extend(baselines.ready() if _interrupted(searches) else baselines)
        searches = [each for run in searches for each in _roomier(problem, _uncut(problem, run), runs)]
        searches.extend(_last_tries(problem, [*runs, *searches]))
    except KeyboardInterrupt:
        runs.extend(baselines.ready())
        if not _legal([*runs, *searches]):
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


def _each(problem: Problem, names: Sequence[str], before: Sequence[_Result] = ()) -> Iterator[_Result]:
    """The runs of these strategies until something ends the search."""
    runs = list(before)
    for name in names:
        left = _budget_left(problem, runs)
        if _over(problem, runs, left):
            return
        strategy(name)  # imports take seconds too, which are nobody's share
        wanted = name not in INSTEAD or "stages" not in names or not _proven(problem, runs)
        if wanted and not _hurried(problem, name):
            runs.append(_run(name, _part(replace(problem, budget=left, known_plans=_plans(runs)), name)))
            yield runs[-1]


def _uncut(problem: Problem, run: _Result) -> _Result:
    """What the exact search found; where branches make of it a graph of stages, which it ranks as if they were a chain,
    the better one of that and of what it finds where no op is cut."""
    pins, best = problem.pins, run.verdict
    free = problem.budget is None and problem.until is None and not any(degree for _, degree in pins.axes)
    if run.name != "stages" or best is None or not free or is_chain(best.plan) or _interrupted([run]):
        return run
    if all(stage.degree == 1 for stage in best.plan.stages) or isinstance(run.found, Infeasible):
        return run
    other = _run("stages", replace(problem, pins=replace(pins, tensor=1)))
    if isinstance(other.found, Infeasible) or other.verdict is None or other.verdict.order >= best.order:
        return run
    both = other.evaluations + run.evaluations
    found = replace(other.found, bound=run.found.bound, left_out=run.found.left_out, evaluations=both)
    return replace(other, found=found)


def _roomier(problem: Problem, run: _Result, others: Sequence[_Result]) -> list[_Result]:
    """What the exact search found; where the best plan fills a good part of a device, so that faster ones may not have
    fitted, first what is better under layouts that hold less. Either may not hold when it is settled."""
    legal = _legal([run, *others])
    free = problem.budget is None and problem.until is None
    if run.name != "stages" or isinstance(run.found, Infeasible) or not (legal and free) or _interrupted([run]):
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


def _last_tries(problem: Problem, runs: list[_Result]) -> Iterator[_Result]:
    """A plan by a few moves, where no budget has moves of its own: from the best plans where nothing is proven of some
    that the model has, of unlike devices after cuts; from none where nothing is legal and the exact search, ended by
    nothing, has not proven that."""
    near = any(isinstance(run.found, Infeasible) and run.found.near for run in runs)
    graphs = problem.until is None and BlockGraph.of(problem.graph).branches and not _proven(problem, runs)
    legal = bool(_legal(runs))
    names = (CUTS, MOVES) if legal and is_mixed(problem.cluster) else (MOVES,)
    most = BRANCH_TRIES * graphs if legal else LAST_TRIES * near
    if not most or problem.budget is not None:
        return
    for name in names:
        if problem.spent or _interrupted(runs):
            return
        run = _run(name, replace(problem, budget=most, known_plans=_plans(runs)))
        if isinstance(run.found, Solution):
            runs = [*runs, replace(run, found=replace(run.found, ended=""))]
            yield runs[-1]


def _hurried(problem: Problem, name: str) -> bool:
    """Whether the share of a strategy is too short for it."""
    left = math.inf if problem.until is None else problem.until - time.perf_counter()
    return name in LEAST and left * SHARES[name] < LEAST[name]


def _part(problem: Problem, name: str) -> Problem:
    """The problem with what a strategy may use of the budget."""
    now, share = time.perf_counter(), SHARES.get(name, 1.0)
    return replace(
        problem,
        budget=None if problem.budget is None else math.ceil(problem.budget * share),
        until=None if problem.until is None else now + (problem.until - now) * share,
    )


def _proven(problem: Problem, runs: Sequence[_Result]) -> bool:
    """Whether no budget ended a search before its proof was complete, or before it found anything, and it is about the
    best plan and all that may be better."""
    best = min((verdict for verdict, _ in _legal(runs)), key=lambda verdict: verdict.order, default=None)
    ended = any(
        run.found.ended in ("evaluations", "seconds") if isinstance(run.found, Solution) else run.name == "stages"
        for run in runs
    )
    return not (ended or _branches(problem)) and (best is None or is_chain(best.plan))


def _over(problem: Problem, runs: list[_Result], left: int | None) -> Ended:
    """What ends the search now: no evaluation left, or the seconds over and some plan found."""
    if _interrupted(runs):
        return "interrupt"
    if left is not None and left <= 0:
        return "evaluations"
    return "seconds" if problem.spent and _legal(runs) else ""


def _interrupted(runs: list[_Result]) -> bool:
    return any(isinstance(run.found, Solution) and run.found.ended == "interrupt" for run in runs)


def _legal(runs: Sequence[_Result]) -> list[tuple[Verdict, _Result]]:
    return [(run.verdict, run) for run in runs if run.verdict is not None and run.verdict.legal]


def _plans(runs: Sequence[_Result]) -> tuple[Plan, ...]:
    """The legal plans, the best first."""
    return tuple(verdict.plan for verdict, _ in sorted(_legal(runs), key=lambda entry: entry[0].order))


def _run(name: str, problem: Problem, *, lowered: bool = False) -> _Result:
    tell(phase=name)
    solver = strategy(name)
    found = solver.solve(problem, lowered=lowered) if isinstance(solver, Baseline) else solver.solve(problem)
    verdict = None if isinstance(found, Infeasible) else judge(problem.costs, found.plan, lowered=lowered)
    if verdict is not None and verdict.legal:
        problem.found(verdict.seconds)
    return _Result(name=name, found=found, verdict=verdict)


def _settle(problem: Problem, runs: list[_Result]) -> None:
    """Judge the best of all in full and have it played; where it does not hold, its run anew or as lost, then the best
    of what there is now."""
    while legal := _legal(runs):
        best, winner = min(legal, key=lambda entry: entry[1].order)
        if winner.played is not None:
            return
        verdict = judge(problem.costs, best.plan)
        anew = isinstance(strategy(winner.name), Baseline) and not verdict.legal
        settled = replace(winner, verdict=verdict)
        if verdict.legal:
            settled = replace(winner, played=step_seconds(problem, best.plan))
        runs[runs.index(winner)] = _run(winner.name, problem, lowered=True) if anew else settled


def _budget_left(problem: Problem, runs: list[_Result]) -> int | None:
    if problem.budget is None:
        return None
    return problem.budget - sum(run.evaluations for run in runs)


def _summary(runs: list[_Result], ended: Ended) -> Solution | Infeasible:
    """The winner with the losers' reasons."""
    legal = _legal(runs)
    if not legal:
        return _binding(runs)
    best, winner = min(legal, key=lambda entry: entry[1].order)
    solved = [run.found for run in runs if isinstance(run.found, Solution)]
    # What is proven of chains of stages says nothing of a graph of them.
    proven = is_chain(best.plan)
    bounds = [found.bound for found in solved if proven and found.bound is not None]
    return Solution(
        plan=replace(best.plan, strategy=winner.name),
        bound=_bound(bounds, best.seconds, min(verdict.seconds for verdict, _ in legal)),
        left_out=tuple(dict.fromkeys(kind for found in solved for kind in found.left_out)),
        alternatives=tuple(_alternative(run, winner) for run in runs if run is not winner),
        evaluations=sum(run.evaluations for run in runs),
        ended=ended or next((found.ended for found in solved if found.ended), ""),
    )


def _binding(runs: Sequence[_Result]) -> Infeasible:
    """What the exact search says binds, or the last other one; where a budget ended all but the baselines, that it
    did."""
    failed = [(run.name, run.found) for run in reversed(runs) if isinstance(run.found, Infeasible)]
    searched = [one for one in failed if one[0] not in (*BASELINES, *INSTEAD)]
    name, found = next((one for one in searched if one[0] == "stages"), next(iter(searched), failed[0]))
    if name not in BASELINES:
        return found
    over = f"the budget was over before anything but baselines was tried, and none has a legal plan ({name}: "
    return Infeasible(binding=f"{over}{found.binding})", advice="Give it a larger one")


def _bound(bounds: Sequence[float], seconds: float, least: float) -> float | None:
    """What is proven of the plan of so many seconds: nothing where it, or one of `least` seconds that is slower when
    played, is of a kind that no exact search tries."""
    if not bounds or least < max(bounds) * (1 - ROUNDING):
        return None
    return min(max(bounds), seconds)


def _alternative(run: _Result, winner: _Result) -> Alternative:
    if isinstance(run.found, Infeasible):
        return Alternative(name=run.name, step_seconds=None, reason=run.found.binding)
    verdict, best = run.verdict, winner.verdict
    assert verdict is not None
    assert best is not None
    if not verdict.legal:
        return Alternative(name=run.name, step_seconds=None, reason=verdict.complaint)
    reason = why_slower(verdict, best)
    if run.seconds != verdict.seconds:
        slower = f"{run.seconds / winner.seconds - 1:.1%} slower in all" if run.seconds > winner.seconds else "as fast"
        reason = f"played event by event; {1e3 * verdict.seconds:.3g} ms by estimate, {slower}"
    return Alternative(name=run.name, step_seconds=run.seconds, reason=reason)
