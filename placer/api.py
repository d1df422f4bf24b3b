"""The library in four functions: a model becomes a Graph, a Graph and machines a Plan, a Plan seconds and bytes.

What needs torch (capture) or a solver (plan) is imported inside the function that needs it, so that a plan can be read,
checked and simulated without either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from placer import costs, simulator
from placer.cluster import Cluster
from placer.errors import UsageError
from placer.fingerprint import versions
from placer.graph import Graph
from placer.ledger import Ledger
from placer.pins import parse_pins, pin_texts
from placer.plans import Asked, Plan
from placer.references import reference_of
from placer.search import Pins, Problem, solve_with
from placer.settings import RunSettings
from placer.simulator import Timeline

if TYPE_CHECKING:
    from placer.tracer.batches import BatchLike
    from placer.tracer.exporting import LossFunction


def capture(model: object, *, batch: BatchLike = None, loss_fn: LossFunction | None = None, devices: int = 1) -> Graph:
    """The immutable Graph of `model`: no weights, no GPU.

    model: an nn.Module (meta is fine), `package.module:factory`, or a Hugging Face config (object or path of its JSON).
    batch: tensors or shapes of the global batch by input name, `ROWSxLENGTH`, or None for what the model's own
    configuration implies with one row per device. loss_fn(output, batch) where the model returns no loss itself.
    Raises CaptureError naming the source line.
    """
    from placer import tracer

    return tracer.capture(model, batch=batch, loss_fn=loss_fn, devices=devices)


def plan(
    model: object,
    cluster_spec: Cluster | str,
    *,
    batch: BatchLike = None,
    loss_fn: LossFunction | None = None,
    settings: RunSettings = RunSettings(),  # noqa: B008 - frozen
    strategy: str = "auto",
    budget: int | None = None,
    seed: int = 0,
    pins: Sequence[str] | Pins = (),
) -> Plan:
    """The best plan `strategy` finds for one training step of `model` on the cluster.

    cluster_spec: a Cluster, a YAML path, a catalogue name with counts (`h100x8*4`), `local` or `localx4`.
    loss_fn: as for `capture`; the ranks import it again, so it stands at the top of a module.
    budget: at most so many evaluated plans. pins: choices that are fixed, as `pipeline=2` or `h.3@stage=1`.
    Without a batch, what was assumed is printed on standard error and recorded in the plan. Raises InfeasibleError with
    what binds.
    """
    from placer import tracer

    cluster = Cluster.load(cluster_spec)
    resolved = tracer.resolve(model)
    loss = reference_of(loss_fn, "the loss") if loss_fn else ""
    graph = tracer.capture(resolved, batch=batch, loss_fn=loss_fn, devices=cluster.size)
    for note in graph.notes:
        print(f"placer: {note}", file=sys.stderr)
    _require_trainable(graph)
    problem = Problem(
        graph=graph,
        cluster=cluster,
        settings=settings,
        model=replace(resolved.ref, loss=loss),
        rows=graph.rows,
        pins=parse_pins(pins, graph),
        seed=seed,
        budget=budget,
    )
    return solve(problem, strategy)


def replan(plan: Plan, cluster_spec: Cluster | str, *, strategy: str = "", pins: Sequence[str] | None = None) -> Plan:
    """The same model, batch, settings, seed and pins on another cluster.

    strategy, pins: instead of those asked for then. Blocks are those the plan was captured with; no model is built.
    Raises UsageError for pins that contradict the new cluster, InfeasibleError with what binds.
    """
    _require_plan(plan)
    problem = Problem(
        graph=plan.graph,
        cluster=Cluster.load(cluster_spec),
        settings=plan.settings,
        model=plan.model,
        rows=plan.rows,
        pins=parse_pins(plan.asked.pins if pins is None else pins, plan.graph),
        seed=plan.seed,
        budget=plan.asked.budget,
    )
    return solve(problem, strategy or plan.asked.strategy)


def _require_trainable(graph: Graph) -> None:
    if graph.loss.reduction == "none":
        raise UsageError(
            f"{graph.name} gives no loss for this batch, and a training step needs one; give the inputs from which the "
            "model computes its loss (labels), or a loss of your own: --loss package.module:function, a function of "
            "(output, batch) that returns one number (loss_fn=function in Python)"
        )
    if not graph.parameter_bytes:
        raise UsageError(f"{graph.name} has no parameters: there is nothing to train and nothing to place")


def solve(problem: Problem, strategy: str = "auto") -> Plan:
    """The judged plan of one strategy, with its bound, its runners-up and what was assumed; raises InfeasibleError."""
    best = solve_with(problem, strategy).plan
    assumptions = tuple(dict.fromkeys((*problem.graph.notes, *best.assumptions)))
    asked = Asked(strategy=strategy, pins=pin_texts(problem.pins), budget=problem.budget)
    return replace(best, assumptions=assumptions, versions=versions(), asked=asked)


def estimate(plan: Plan) -> Ledger:
    """Predicted seconds and bytes of one step by the closed form: what searches compare."""
    _require_plan(plan)
    return costs.estimate(plan)


def simulate(plan: Plan) -> Timeline:
    """The step played event by event: its slices, and its ledger."""
    _require_plan(plan)
    return simulator.simulate(plan)


def _require_plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise UsageError(f"{plan!r:.80} is no plan; give what placer.plan returned, or Plan.load('plan.json')")
