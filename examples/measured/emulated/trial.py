"""Trial: a model on an emulated cluster; what is predicted of its plans, and what its ranks do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from statistics import median

from examples.measured.emulated.description import Measured
from examples.measured.emulated.machines import Machines
from examples.measured.emulated.models import MODELS
from examples.measured.emulated.ranks import Ranks
from examples.measured.emulated.tasks import Brakes, step_seconds, verified
from placer import simulate, tracer
from placer.api import solve
from placer.costs.step_estimate import estimate
from placer.errors import ExecutionError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.problem import Problem

VERIFY_SECONDS = 400.0
TIMING_SECONDS = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Seconds of a step: by the closed form that searches compare, and played event by event."""

    estimated: float
    simulated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of a plan held to one device: its worst relative error, whether that is within bounds, and if not, what is."""

    error: float
    passed: bool
    told: str = ""

    @property
    def runs(self) -> bool:
        """Whether it ran at all."""
        return not isnan(self.error)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A problem on the machines as they were measured, and the ranks that are those machines."""

    ranks: Ranks
    measured: Measured
    machines: Machines
    problem: Problem

    @staticmethod
    def of(ranks: Ranks, measured: Measured, model: str) -> Trial:
        """The model `model` of the table on all machines."""
        entry, machines = MODELS[model], ranks.emulated.machines
        graph = tracer.capture(entry.reference, batch=entry.batch)
        problem = Problem(
            graph=graph,
            cluster=measured.cluster(machines),
            settings=RunSettings(precision=entry.precision, batch_norm="microbatch"),
            model=tracer.resolve(entry.reference).ref,
            rows=graph.rows,
        )
        return Trial(ranks=ranks, measured=measured, machines=machines, problem=problem)

    def on(self, machines: Machines) -> Trial:
        """The same model on machines of other speeds."""
        cluster = self.measured.cluster(machines)
        return replace(self, machines=machines, problem=replace(self.problem, cluster=cluster))

    def chosen(self) -> Plan:
        """The search's own plan."""
        return solve(self.problem)

    def moved(self, plan: Plan) -> Plan:
        """A plan that was made for machines of other speeds, with what is predicted of it here."""
        here = replace(plan, cluster=self.problem.cluster, bound=None, alternatives=())
        return replace(here, ledger=estimate(here))

    def verified(self, plan: Plan) -> Verdict:
        """The plan's steps on the machines, without brakes, held to one device's."""
        try:
            report = self.ranks.run(plan.ranks, verified, plan, timeout=VERIFY_SECONDS)[0]
        except ExecutionError as error:
            return Verdict(error=nan, passed=False, told=f"FAILS: {error}")
        if isinstance(report, str):
            return Verdict(error=nan, passed=False, told=f"REFUSED: {report}")
        told = "" if report.passed else f"DIFFERS: {report}"
        return Verdict(error=report.worst.relative, passed=report.passed, told=told)

    def seconds(self, plans: Sequence[Plan], steps: int, rounds: int) -> list[float]:
        """Seconds of a step of each plan: the median of all steps of all rounds, in which plans take turns."""
        self.ranks.emulated.reshape(self.machines)
        found: list[list[float]] = [[] for _ in plans]
        for _ in range(rounds):
            for own, plan in zip(found, plans, strict=True):
                timings = self.ranks.run(
                    plan.ranks, step_seconds, plan, self._brakes(plan), steps, timeout=TIMING_SECONDS
                )
                own += map(max, zip(*timings, strict=True))
        return [median(own) for own in found]

    def _brakes(self, plan: Plan) -> Brakes:
        return [(self.ranks.emulated.group(device), self.machines.shares[device]) for device in plan.ranks]


def predicted(plan: Plan) -> Predicted:
    """What is predicted of a plan."""
    assert plan.ledger is not None
    return Predicted(estimated=plan.ledger.step_seconds, simulated=simulate(plan).ledger.step_seconds)
