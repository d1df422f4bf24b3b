"""The judge: `solve_with` runs a strategy, then checks and estimates what it returned, so that none grades itself.

A verdict is the estimate of `costs` and the violations of `legality`, never a strategy's own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from placer.costs.costs import Costs
from placer.costs.step_estimate import costs_of, estimate_with, with_reductions
from placer.errors import Infeasible, InfeasibleError, StrategyError, UsageError
from placer.legality import Violation, check
from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.rules.expert_loads import require_loads
from placer.search.asked import require_islands
from placer.search.problem import Pins, Problem, Solution, strategy

# Broken rules that are told.
MOST_WORDS = 3
NO_SUCH_SUM = "pin reduction={way}: no stage sums whole gradients over nodes in it; data=N and shard=none ask for such"
# What a strategy adds up in its own order may differ from the estimate by rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`plan` carries its ledger; it is legal where `violations` is empty."""

    plan: Plan
    ledger: Ledger
    violations: tuple[Violation, ...]

    @property
    def legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def seconds(self) -> float:
        """Estimated seconds of a step."""
        return self.ledger.step_seconds

    @property
    def order(self) -> tuple[float, int, int, int, int, str]:
        """What plans are compared by: seconds first, then the simpler one, the more even one, then its own text."""
        plan, rows = self.plan, self.plan.microbatches
        return self.seconds, plan.world_size, len(plan.stages), len(rows), max(rows) - min(rows), repr(plan.stages)

    @property
    def complaint(self) -> str:
        """The broken rules in words, a few of many."""
        found = list(dict.fromkeys(violation.message for violation in self.violations))
        more = [f"and {len(found) - MOST_WORDS} more like these"] if len(found) > MOST_WORDS else []
        return "; ".join([*found[:MOST_WORDS], *more])


def judge(costs: Costs, plan: Plan, *, lowered: bool = True) -> Verdict:
    """The verdict on `plan`, whose graph, cluster and settings the costs are of (`lowered`: see `legality.check`)."""
    ledger = estimate_with(costs, plan)
    return Verdict(plan=replace(plan, ledger=ledger), ledger=ledger, violations=check(plan, costs, lowered=lowered))


def solve_with(problem: Problem, name: str) -> Solution:
    """What the strategy `name` finds, judged: legal, within the pins, estimated afresh, ready to save.

    Raises InfeasibleError where nothing fits, UsageError for an unknown name or a bad problem, StrategyError where the
    strategy returned a plan for another problem, an illegal plan, a wrong estimate or a bound above its own plan.
    """
    require_sound(problem)
    require_islands(name, islands=problem.islands, resume=problem.resume, budget=problem.budget)
    found = strategy(name).solve(problem)
    if isinstance(found, Infeasible):
        raise InfeasibleError(found)
    return judged(problem, found, name)


def judged(problem: Problem, found: Solution, name: str) -> Solution:
    """`found` with its plan completed by ledger, bound and runners-up; raises StrategyError for a false claim."""
    foreign = _foreign(found.plan, problem)
    costs = costs_of(found.plan) if foreign else problem.costs
    plan = found.plan if foreign else with_reductions(costs, found.plan)
    ledger, broken = estimate_with(costs, plan), check(plan, costs)
    complaints = [*foreign, *broken_pins(plan, problem.pins), *(violation.message for violation in broken)]
    claimed = ledger.step_seconds if plan.ledger is None else plan.ledger.step_seconds
    if abs(claimed - ledger.step_seconds) > ROUNDING * ledger.step_seconds:
        complaints.append(f"it claims {claimed!r} s a step, the estimate is {ledger.step_seconds!r} s")
    if found.bound is not None and not 0 <= found.bound <= ledger.step_seconds * (1 + ROUNDING):
        complaints.append(f"its bound of {found.bound!r} s is not between 0 and its {ledger.step_seconds!r} s")
    if complaints:
        raise StrategyError(f"the strategy {name!r} returned a plan that does not hold: {'; '.join(complaints)}")
    # A bound of 0 proves nothing.
    bound, assumptions = found.bound or None, plan.assumptions
    if bound is not None and found.left_out:
        assumptions = (*assumptions, f"bound and gap say nothing of plans not searched: {'; '.join(found.left_out)}")
    if problem.pins.reduction and all(stage.reduction != problem.pins.reduction for stage in plan.stages):
        assumptions = (*assumptions, NO_SUCH_SUM.format(way=problem.pins.reduction))
    complete = replace(
        plan, strategy=plan.strategy or name, seed=problem.seed, ledger=ledger, bound=bound, assumptions=assumptions,
        alternatives=found.alternatives,
    )  # fmt: skip
    return replace(found, plan=complete)


def require_sound(problem: Problem) -> None:
    """Raise UsageError for a problem without blocks, rows, devices or evaluations, or with loads of other experts."""
    require_loads(problem.graph, problem.settings.expert_loads)
    for what, count in (
        ("blocks to place", len(problem.graph.blocks)),
        ("rows in the batch", problem.rows),
        ("devices in the cluster", problem.cluster.size),
        ("evaluations in the budget", 1 if problem.budget is None else problem.budget),
    ):
        if count < 1:
            raise UsageError(f"a plan was asked for with {count} {what}; give at least 1")


def broken_pins(plan: Plan, pins: Pins) -> tuple[str, ...]:
    """Each pin that `plan` does not honour, in words; but for `reduction`, which the judge itself writes down."""
    wanted: tuple[tuple[str, object, set[object]], ...] = (
        ("data", pins.data, {stage.replicas for stage in plan.stages}),
        ("shard", pins.shard, {stage.sharding for stage in plan.stages}),
        ("pipeline", pins.pipeline, {plan.positions}),
        ("microbatches", pins.microbatches, {len(plan.microbatches)}),
        ("schedule", pins.schedule, {plan.schedule}),
        ("recompute", pins.recompute, {stage.recompute for stage in plan.stages}),
        ("bucket", pins.bucket, {plan.bucket_bytes}),
    )
    broken = [f"pin {name}={pin} is not honoured" for name, pin, found in wanted if pin is not None and found != {pin}]
    for axis, degree in pins.axes:
        if degree is not None and _degrees(plan, axis) != {degree}:
            broken.append(f"pin {axis}={degree} is not honoured")
    index = {block.name: i for i, block in enumerate(plan.graph.blocks)} if pins.stage_of else {}
    for name, stage in pins.stage_of:
        held = stage < len(plan.stages) and plan.stages[stage].first <= index[name] < plan.stages[stage].last
        if not held:
            broken.append(f"pin {name}@stage={stage} is not honoured")
    return tuple(broken)


def _degrees(plan: Plan, axis: str) -> set[int]:
    """The devices of a replica along an axis, of every stage."""
    layouts = [None if stage.layout is None else plan.layouts[stage.layout] for stage in plan.stages]
    return {1 if layout is None else dict(layout.axes).get(axis, 1) for layout in layouts}


def _foreign(plan: Plan, problem: Problem) -> list[str]:
    """What of the plan's inputs is not the problem's."""
    pairs = {
        "model": (plan.model, problem.model),
        "graph": (plan.graph, problem.graph),
        "cluster": (plan.cluster, problem.cluster),
        "settings": (plan.settings, problem.settings),
        "rows": (plan.rows, problem.rows),
    }
    return [
        f"its {what} is not the problem's"
        for what, (mine, given) in pairs.items()
        if mine is not given and mine != given
    ]
