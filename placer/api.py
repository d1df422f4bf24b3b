"""The library in four functions: a model becomes a Graph, a Graph and machines a Plan, a Plan seconds and bytes.

What needs torch (capture) or a solver (plan) is imported inside the function that needs it, so that a plan can be read,
checked and simulated without either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from placer.cluster import Cluster
from placer.errors import Infeasible, InfeasibleError
from placer.graph import Graph
from placer.ledger import Ledger
from placer.pins import parse_pins
from placer.plans import Plan
from placer.search import Pins, Problem
from placer.search import strategy as strategy_named
from placer.settings import RunSettings

if TYPE_CHECKING:
    from placer.timeline import Timeline
    from placer.tracer import BatchSpec, LossFunction, ModelSpec


def capture(
    model: ModelSpec, *, batch: BatchSpec = None, loss_fn: LossFunction | None = None, devices: int = 1
) -> Graph:
    """The immutable Graph of `model`: no weights, no GPU.

    model: an nn.Module (meta is fine), `package.module:factory`, or a Hugging Face config (object or path of its JSON).
    batch: tensors or shapes of the global batch by input name, `ROWSxLENGTH`, or None for what the model's own
    configuration implies with one row per device. Raises CaptureError naming the source line.
    """
    from placer import tracer

    return tracer.capture(model, batch=batch, loss_fn=loss_fn, devices=devices)


def plan(
    model: ModelSpec,
    cluster_spec: Cluster | str,
    *,
    batch: BatchSpec = None,
    loss_fn: LossFunction | None = None,
    settings: RunSettings = RunSettings(),  # noqa: B008 - frozen
    strategy: str = "auto",
    budget: int | None = None,
    seed: int = 0,
    pins: Sequence[str] | Pins = (),
) -> Plan:
    """The best plan `strategy` finds for one training step of `model` on the cluster.

    cluster_spec: a Cluster, a YAML path, a catalogue name with counts (`h100x8*4`), `local` or `localx4`.
    budget: at most so many evaluated plans. pins: choices that are fixed, as `pipeline=2` or `h.3@stage=1`.
    Without a batch, what was assumed is printed on standard error and recorded in the plan. Raises InfeasibleError with
    what binds.
    """
    from placer import tracer

    cluster = Cluster.load(cluster_spec)
    resolved = tracer.resolve(model)
    graph = tracer.capture(resolved, batch=batch, loss_fn=loss_fn, devices=cluster.size)
    for note in graph.notes:
        print(f"placer: {note}", file=sys.stderr)
    problem = Problem(
        graph=graph,
        cluster=cluster,
        settings=settings,
        model=resolved.ref,
        rows=graph.rows,
        pins=parse_pins(pins, graph),
        seed=seed,
        budget=budget,
    )
    return solve(problem, strategy)


def solve(problem: Problem, strategy: str = "auto") -> Plan:
    """The plan of one strategy for a problem, with its bound and runners-up; raises InfeasibleError."""
    solution = strategy_named(strategy).solve(problem)
    if isinstance(solution, Infeasible):
        raise InfeasibleError(solution)
    best = solution.plan
    assumptions = tuple(dict.fromkeys((*problem.graph.notes, *best.assumptions)))
    return replace(
        best,
        seed=problem.seed,
        strategy=best.strategy or strategy,
        bound=best.bound if solution.bound is None else solution.bound,
        alternatives=best.alternatives or solution.alternatives,
        assumptions=assumptions,
    )


def estimate(plan: Plan) -> Ledger:
    """Predicted seconds and bytes of one step by the closed form: what searches compare."""
    from placer import costs

    return costs.estimate(plan)


def simulate(plan: Plan) -> Timeline:
    """The step played event by event: its slices, and its ledger."""
    from placer import simulator

    return simulator.simulate(plan)
