"""Walk: what a search by moves has seen so far, within its budget; its seeds, its neighbours, its result.

In: a Problem. A walk counts the plans it evaluates, evaluates none twice, and keeps the `BEST` legal ones. It is over
when the budget's evaluations or seconds are used up, when the limit is reached that holds where there is no budget, or
when hardly any move leads to something new. Out (`result`): the best of the kept ones whose communication holds.

    order of plans   bytes beyond memory, then seconds, devices, stages, microbatches
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from placer.costs.step_estimate import with_best_buckets
from placer.errors import Infeasible
from placer.plans.plan import Alternative, Layout, Plan
from placer.search.evaluator import Evaluator, Score
from placer.search.judge import judge
from placer.search.problem import Ended, Problem, Solution, Strategy
from placer.strategies.baselines.megatron import Megatron
from placer.strategies.baselines.standard import (
    Baseline,
    DataParallel,
    EvenPipeline,
    ShardedDataParallel,
    SingleDevice,
)
from placer.strategies.horizontal.search import Horizontal
from placer.strategies.intra_op.layouts import halfway, layouts, roomy_layouts
from placer.strategies.lists.strategies import Lists
from placer.strategies.moves.neighbourhood import Neighbourhood, tidied
from placer.strategies.moves.outlined import outlined
from placer.strategies.moves.repair import lighter, repaired
from placer.strategies.moves.table import drawn, kinds, moved
from placer.strategies.space.block_graph import branches_matter
from placer.strategies.space.outline import whole_batch
from placer.strategies.space.parts import hurried_on_unlike
from placer.strategies.space.pin_conflicts import require_pins

SEEDS: tuple[type[Baseline], ...] = (SingleDevice, DataParallel, ShardedDataParallel, EvenPipeline, Megatron)
# Plans that are evaluated where no budget is given: some seconds on small problems.
EVALUATIONS = 5_000
BEST = 12
# Moves in a row that led to nothing new, and all of those for each plan evaluated beyond them, after which hardly
# anything is left: small spaces go on to have a new plan now and then.
BARREN = 3_000
FRUITLESS = 10
# How often a neighbour is two moves away: some gains need a replica more and state that is divided over them at once.
TWICE = 0.2
# Of what is left of a budget the share of a strategy that is asked for a seed; list schedulers often have the best, and
# of a batch that stays whole they make layouts too, which takes long.
OTHERS, LISTED, WHOLE_LISTED = 1 / 6, 1 / 4, 1 / 2
# Draws of an outline for one plan.
DRAWS = 20


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Seen:
    """A plan with its score, which plans are compared by."""

    excess: int
    seconds: float
    devices: int
    stages: int
    microbatches: int
    number: int
    plan: Plan = field(compare=False)
    score: Score = field(compare=False)

    @property
    def legal(self) -> bool:
        """Whether it breaks no rule, communication apart."""
        return self.score.legal

    def better(self, other: Seen) -> bool:
        """Whether it comes before `other`; of equal ones neither does."""
        return self.value < other.value

    @property
    def value(self) -> tuple[int, float, int, int, int]:
        """What it is compared by, without when it was found."""
        return self.excess, self.seconds, self.devices, self.stages, self.microbatches


class Walk:
    """The plans seen on the way, of a problem whose pins do not contradict each other."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rng = Random(problem.seed)
        self.evaluator = Evaluator(problem.costs)
        self.most = problem.budget
        self.evaluations = 0
        self.best: list[Seen] = []
        self.around = Neighbourhood.of(problem, ())
        self._known: dict[Hashable, Seen | None] = {}
        self._barren = self._fruitless = 0
        self._seeded = False
        self._gains = Counter[str]()
        self._complaint = ""

    @property
    def over(self) -> bool:
        """Whether nothing more may be evaluated, or nothing new is found."""
        return bool(self.ended) or self.barren or (not self.limited and self.evaluations >= EVALUATIONS)

    @property
    def barren(self) -> bool:
        """Whether so many moves, in a row or in all, led to nothing new that there is hardly anything left."""
        return self._barren >= BARREN or self._fruitless >= BARREN + FRUITLESS * self.evaluations

    @property
    def ended(self) -> Ended:
        """What of the budget is used up; seconds do not end a search for a first plan among the baselines."""
        if self.most is not None and self.evaluations >= self.most:
            return "evaluations"
        return "seconds" if self.problem.spent and (self.best or self._seeded) else ""

    @property
    def limited(self) -> bool:
        """Whether a budget says when it is over."""
        return self.problem.budget is not None or self.problem.until is not None

    def tried(self, plan: Plan | None) -> Seen | None:
        """The plan with its score, evaluated if it is new; None for none, for an unsound shape, and when it is over."""
        if plan is None:
            return self._nothing_new(None)
        key = self._key(plan)
        if key in self._known:
            return self._nothing_new(self._known[key])
        if self.over:
            return None
        self._barren = 0
        self.evaluations += 1
        return self._new(key, plan)

    def knows(self, plan: Plan) -> bool:
        """Whether the plan was seen, or is of an unsound shape that was."""
        return self._key(plan) in self._known

    def _nothing_new(self, seen: Seen | None) -> Seen | None:
        """What a move led to that was known, or nothing."""
        self._barren += 1
        self._fruitless += 1
        return seen

    def recalled(self, plan: Plan) -> Seen | None:
        """The plan with its score; it is not counted, as another walk has done so. None for an unsound shape."""
        key = self._key(plan)
        return self._known[key] if key in self._known else self._new(key, plan)

    def take_up(self, known: Iterable[Layout]) -> None:
        """Go on among plans of these layouts, without seeds: those of an earlier walk are known."""
        require_pins(self.problem)
        self._widen(known)
        self._seeded = True

    def anew(self, rng: Random, most: int | None) -> Walk:
        """A walk among the same plans that has seen none of them, and counts up to `most` of its own."""
        made = Walk(self.problem)
        made.rng, made.most, made.evaluator, made.around = rng, most, self.evaluator, self.around
        made._seeded = True
        return made

    def seeds(self, *, horizontal: bool = True) -> list[Seen]:
        """The plans that are known, or the baselines' and of branches the best on devices of their own, the best first;
        then drawn at random where none is legal."""
        require_pins(self.problem)
        known = self.problem.known_plans
        found = [seed for plan in known if not self.over for seed in self.given(plan)]
        if not known:
            found = [seed for kind in SEEDS[:-1] if not self.over for seed in self._baseline(kind())]
            listed = self.around.branches or hurried_on_unlike(self.problem)
            share = WHOLE_LISTED if whole_batch(self.problem) else LISTED
            found += self.asked(Lists(), found, share) if listed else []
            found += [seed for kind in SEEDS[-1:] if not self.over for seed in self._baseline(kind())]
        self._seeded = True
        if not self.over:
            self._widen(layouts(halfway(self.problem), self.problem.costs))
        if horizontal and not known and self.around.branches and branches_matter(self.problem.graph):
            found += self.asked(Horizontal(), found)
        if not any(seed.legal for seed in found) and not self.over:
            roomy = roomy_layouts(halfway(self.problem), self.problem.costs)
            self._widen(roomy)
            drawn = (self.begun() for _ in range(DRAWS))
            found += [seed for seed in drawn if seed is not None]
        return sorted(found)

    def begun(self) -> Seen | None:
        """A legal plan drawn at random, or one that is nearly so."""
        for _ in range(DRAWS):
            plan = outlined(self.around, self.rng)
            found = self.lightened(self.tried(None if plan is None else repaired(self.around, plan)))
            if found is not None or self.over:
                return found
        return None

    def neighbour(self, seen: Seen) -> Seen | None:
        """A plan one move from `seen`, sometimes two, lightened if it is faster and holds too much."""
        name = drawn(kinds(self.around, seen.plan), self.rng, self._gains)
        plan = moved(self.around, seen.plan, name, self.rng)
        if plan is not None and self.rng.random() < TWICE:
            name = drawn(kinds(self.around, plan), self.rng, self._gains)
            plan = moved(self.around, plan, name, self.rng)
        found = self.tried(plan)
        if found is not None and not found.legal and found.seconds < seen.seconds:
            found = self.lightened(found)
        if found is not None and found.better(seen):
            self._gains[name] += 1
        return found

    def lightened(self, seen: Seen | None) -> Seen | None:
        """`seen`, or where it holds too much the first lighter plan that does not, or the lightest."""
        if seen is None or seen.legal:
            return seen
        found = [seen]
        for plan in lighter(self.around, self.around.known(seen.plan), seen.score, self.rng):
            made = self.tried(plan)
            if made is not None and made.legal:
                return made
            found += [made] if made is not None else []
        return min(found)

    def result(self, name: str, alternatives: tuple[Alternative, ...] = ()) -> Solution | Infeasible:
        """The best plan whose communication holds, or what binds."""
        for seen in self.best:
            plan = self._finished(seen)
            verdict = judge(self.problem.costs, plan)
            if verdict.legal:
                return Solution(
                    plan=replace(verdict.plan, strategy=name), alternatives=alternatives, evaluations=self.evaluations,
                    ended=self.ended,
                )  # fmt: skip
            self._complaint = verdict.complaint
        more = "a larger budget" if self.ended else "the strategy auto"
        binding = self._complaint or "pins or cluster leave no plan that moves lead to"
        return Infeasible(binding=binding, advice=f"Try {more}")

    def _key(self, plan: Plan) -> Hashable:
        known = self.evaluator.costs.known
        return known.of(plan), plan.schedule, known.microbatches(plan).number, plan.bucket_bytes

    def _new(self, key: Hashable, plan: Plan) -> Seen | None:
        """A plan that was not looked at here before, which is then known, and perhaps one of the best."""
        self._known[key] = found = self._seen(plan)
        if found is not None and found.legal:
            self.problem.found(found.seconds)
            insort(self.best, found)
            del self.best[BEST:]
        return found

    def _finished(self, seen: Seen) -> Plan:
        plan = tidied(seen.plan)
        return plan if self.problem.pins.bucket is not None else with_best_buckets(self.problem.costs, plan)

    def _widen(self, more: Iterable[Layout]) -> None:
        """More layouts to choose from, behind those there were: numbers stay."""
        both = dict.fromkeys((*self.around.layouts, *more))
        if len(both) == len(self.around.layouts):
            return
        self.around = Neighbourhood(self.problem, tuple(both))

    def given(self, plan: Plan) -> Iterator[Seen]:
        """A plan that is known already, where moves know its kind."""
        self._widen(plan.layouts)
        seen = self.tried(self.around.adopted(plan))
        if seen is not None:
            yield seen

    def asked(self, other: Strategy, before: Sequence[Seen], share: float = OTHERS) -> list[Seen]:
        """The best plan of another strategy, for a share of what is left of the budget."""
        if self.over:
            return []
        now, until = time.perf_counter(), self.problem.until
        most = EVALUATIONS if self.problem.budget is None else self.problem.budget
        part = replace(
            self.problem,
            budget=math.ceil((most - self.evaluations) * share),
            until=None if until is None else now + (until - now) * share,
            known_plans=tuple(seed.plan for seed in before if seed.legal),
        )
        found = other.solve(part)
        if isinstance(found, Infeasible):
            return []
        self.evaluations += found.evaluations
        return [] if self.over else list(self.given(found.plan))

    def _baseline(self, solver: Baseline) -> Iterator[Seen]:
        """The best plan of the first group of candidates with a legal one; else the lightest of all."""
        if any(degree and degree > 1 and axis not in solver.cut for axis, degree in self.problem.pins.axes):
            return
        lightest: list[Seen] = []
        for group in solver.candidates(self.problem):
            self._widen(layout for plan in group for layout in plan.layouts)
            found = [seen for plan in group if (seen := self.tried(self.around.adopted(plan))) is not None]
            legal = [seen for seen in found if seen.legal]
            if legal:
                yield min(legal)
                return
            lightest = sorted([*lightest, *found])[:1]
            if self.over:
                break
        yield from lightest

    def _seen(self, plan: Plan) -> Seen | None:
        score = self.evaluator.score(plan)
        if score.seconds is None:
            self._complaint = self._complaint or score.broken[0].message
            return None
        if score.excess and not self.best:
            self._complaint = self.evaluator.violations(plan)[0].message
        return Seen(
            excess=score.excess, seconds=score.seconds, devices=score.devices, stages=len(plan.stages),
            microbatches=len(plan.microbatches), number=self.evaluations, plan=plan, score=score,
        )  # fmt: skip
