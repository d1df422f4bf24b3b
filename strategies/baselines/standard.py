"""What one would do without a planner: one device, data parallel, sharded data parallel, an even pipeline split.

Each proposes layouts in the order a practitioner would try them (largest microbatch first, recompute only when nothing
fits without) and takes the first legal one. On unlike devices data parallel also tries shares by which all of them
finish together, as one would set by hand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from placer.costs.costs import Costs
from placer.costs.step_estimate import estimate_with
from placer.errors import Infeasible
from placer.plans.plan import Plan, Recompute, ScheduleName, Sharding, replica_rows
from placer.search.judge import Verdict, judge
from placer.search.problem import Problem, Solution
from placer.strategies.inter_op.partition.even import even_cuts, level_cuts
from placer.strategies.intra_op.layouts import fastest_layout
from placer.strategies.space.device_orders import device_orders, group_classes
from placer.strategies.space.outline import (
    Outline,
    divisors,
    microbatch_rows,
    pinned_stage,
    plan_of,
    position_counts,
    recomputes,
    replica_counts,
    schedules,
    shardings,
    stage_allowed,
    whole_batch,
)
from placer.strategies.space.pin_conflicts import require_pins
from placer.strategies.space.row_shares import level_shares

# Microbatches per position at which the bubble is small: Huang et al., GPipe, 2019, section 2.3 ("M >= 4 x K").
MICROBATCHES_PER_POSITION = 4


class Baseline(ABC):
    """Takes the first legal plan of `candidates`, each a group of plans of which the fastest counts."""

    name: str
    exact = False
    #: The axes along which it cuts ops of a replica.
    cut: tuple[str, ...] = ()

    @abstractmethod
    def candidates(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        """Plans in the order they would be tried; those of one tuple are equally natural."""

    def solve(self, problem: Problem, *, lowered: bool = True) -> Solution | Infeasible:
        """The first candidate that `judge` finds legal. Raises UsageError for contradicting pins."""
        require_pins(problem)
        pinned = [
            f"{axis}={degree}" for axis, degree in problem.pins.axes if degree and degree > 1 and axis not in self.cut
        ]
        if pinned:
            return Infeasible(binding=f"the pin {', '.join(pinned)} cuts ops, which {self.name} does not")
        evaluations, last = 0, None
        for group in self.candidates(problem):
            evaluations += len(group)
            for plan in sorted(group, key=lambda plan: _order(problem.costs, plan)):
                verdict = judge(problem.costs, plan, lowered=lowered)
                if verdict.legal:
                    return Solution(plan=verdict.plan, evaluations=evaluations)
                last = verdict if plan is group[-1] else last
        return self._infeasible(last)

    def _infeasible(self, last: Verdict | None) -> Infeasible:
        if last is None:
            return Infeasible(binding=f"pins or cluster leave no plan of the kind {self.name}")
        return Infeasible(binding=last.complaint, advice="Try the strategy auto")


class _OnePosition(Baseline):
    """One position with as many replicas as allowed, at most `most`."""

    sharding: Sharding = "none"
    most: int | None = None

    def candidates(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        """Microbatches from the whole batch down."""
        if not _one_position(problem):
            return
        for replicas in [d for d in replica_counts(problem, 1) if self.most is None or d <= self.most][-1:]:
            for recompute in recomputes(problem):
                for rows in sorted(microbatch_rows(problem, replicas), reverse=True):
                    for schedule, _ in schedules(problem, 1):
                        for state in {self.sharding} & set(shardings(problem, replicas, schedule)):
                            outline = Outline(
                                positions=1, replicas=replicas, virtual=1, rows=problem.rows, microbatch=rows,
                                schedule=schedule, sharding=state,
                            )  # fmt: skip
                            yield tuple(plan_of(problem, made, (), (recompute,)) for made in _shared(problem, outline))


class SingleDevice(_OnePosition):
    """Everything on the device that is fastest, of those on which it fits."""

    name = "single"
    most = 1


class DataParallel(_OnePosition):
    """A replica on every device; where the batch may not be divided one replica whose devices have rows of their own
    and exchange what mixes them, as synchronised batch norms do."""

    name = "data"
    cut = ("rows",)

    def candidates(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        """Rows over as many devices as they divide by, then replicas."""
        if whole_batch(problem) and _one_position(problem):
            yield from _along_rows(problem)
        if (problem.pins.rows or 1) == 1:
            yield from super().candidates(problem)


class ShardedDataParallel(_OnePosition):
    """A replica on every device, parameters, gradients and optimizer state divided among them."""

    name = "sharded"
    sharding = "parameters"


class EvenPipeline(Baseline):
    """As many positions as devices (or blocks), equal stages by count of blocks or by their cost, 1F1B."""

    name = "even"

    def candidates(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        """First with at least `MICROBATCHES_PER_POSITION` microbatches a position, then with any number."""
        for positions in sorted(position_counts(problem), reverse=True)[:1]:
            replicas = max(replica_counts(problem, positions), default=0)
            sizes = sorted(microbatch_rows(problem, replicas), reverse=True) if replicas else []
            enough = [r for r in sizes if -(-problem.rows // r) >= MICROBATCHES_PER_POSITION * positions]
            for recompute in recomputes(problem):
                for rows in [*enough, *(r for r in reversed(sizes) if r not in enough)]:
                    for schedule, virtual in schedules(problem, positions)[:1]:
                        for state in shardings(problem, replicas, schedule)[:1]:
                            outline = Outline(
                                positions=positions, replicas=replicas, virtual=virtual, rows=problem.rows,
                                microbatch=rows, schedule=schedule, sharding=state,
                            )  # fmt: skip
                            yield tuple(_even_plans(problem, outline, recompute))


def _one_position(problem: Problem) -> bool:
    """Whether pins allow the whole model at one position."""
    whole_model_allowed = stage_allowed(pinned_stage(problem), 0, 0, len(problem.graph.blocks))
    return 1 in position_counts(problem) and whole_model_allowed


def _along_rows(problem: Problem) -> Iterator[tuple[Plan, ...]]:
    """One replica whose devices each do the ops on rows of their own, or whole where that is sooner: all devices, those
    of a node, or those of a kind, as many of them as the rows divide by."""
    degrees = _rows_degrees(problem)
    layouts = {degree: fastest_layout(problem, problem.costs, (("rows", degree),)) for degree in degrees}
    for recompute in recomputes(problem):
        for schedule, _ in schedules(problem, 1):
            group = tuple(
                plan_of(problem, each, (), (recompute,), layout)
                for degree, layout in layouts.items()
                if layout is not None and "none" in shardings(problem, 1, schedule)
                for each in _lined_up(problem, schedule, degree)
            )
            if group:
                yield group


def _rows_degrees(problem: Problem) -> tuple[int, ...]:
    """Numbers of devices along the rows of a replica, from the most down."""
    pinned, cluster = problem.pins.rows, problem.cluster
    sizes = {cluster.size, *(node.size for node, _ in cluster.groups), *map(len, group_classes(cluster, 1))}
    found = {max(degree for degree in divisors(problem.rows) if degree <= size) for size in sizes}
    return tuple(sorted(({pinned} if pinned else found) - {1}, reverse=True))


def _lined_up(problem: Problem, schedule: ScheduleName, degree: int) -> Iterator[Outline]:
    """One replica of so many devices, of each choice of them."""
    outline = Outline(
        positions=1, replicas=1, virtual=1, rows=problem.rows, microbatch=problem.rows, schedule=schedule,
        sharding="none", layout=0, degree=degree,
    )  # fmt: skip
    yield from (replace(outline, device_order=order) for order in device_orders(problem.cluster, 1, 1, degree))


def _order(costs: Costs, plan: Plan) -> tuple[float, int, int, int, int, str]:
    """What plans are compared by: the fastest is judged first."""
    ledger = estimate_with(costs, plan)
    return Verdict(plan=plan, ledger=ledger, violations=()).order


def _shared(problem: Problem, outline: Outline) -> tuple[Outline, ...]:
    """Equal shares; where devices are unlike also those that finish together, or one of each kind by itself."""
    if len(set(problem.cluster.devices)) == 1:
        return (outline,)
    if outline.replicas == 1 == outline.positions:
        return tuple(replace(outline, device_order=order) for order in device_orders(problem.cluster, 1, 1, 1))
    costs = problem.costs
    return outline, replace(outline, shares=level_shares(outline, costs))


def _even_plans(problem: Problem, outline: Outline, recompute: Recompute) -> Iterator[Plan]:
    """Cuts even by count and by cost, where the pinned blocks allow them."""
    pinned = pinned_stage(problem)
    weights = _block_seconds(problem, outline)
    cut = level_cuts if outline.virtual > 1 else even_cuts
    for cuts in dict.fromkeys((cut([1.0] * len(weights), outline.stages), cut(weights, outline.stages))):
        edges = (0, *cuts, len(weights))
        if all(stage_allowed(pinned, s, edges[s], edges[s + 1]) for s in range(outline.stages)):
            yield plan_of(problem, outline, cuts, (recompute,) * outline.stages)


def _block_seconds(problem: Problem, outline: Outline) -> list[float]:
    """Forward and backward seconds of each block by itself, on device 0, for one microbatch."""
    rows = max(replica_rows(outline.microbatch, (), outline.replicas))
    blocks = range(len(problem.graph.blocks))
    each = [problem.costs.stage_times.stage(b, b + 1, device=0, rows=rows) for b in blocks]
    return [seconds.forward + seconds.backward for seconds in each]
