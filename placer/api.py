"""The library in four functions: a model becomes a Graph, a Graph and machines a Plan, a Plan seconds and bytes.

What needs torch (capture) or a solver (plan) is imported inside the function that needs it, so that a plan can be read,
checked and simulated without either.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from placer import legality, simulator
from placer.cluster.cluster import Cluster
from placer.costs import step_estimate as estimates
from placer.errors import UsageError
from placer.graph import Granularity, Graph
from placer.io.model_config import require_buildable
from placer.io.usercode import reference_of
from placer.io.versions import versions
from placer.plans.ledger import Ledger
from placer.plans.plan import SEEDS, Asked, Plan
from placer.plans.settings import Precision, RunSettings
from placer.rules.opaque import OpaqueCost
from placer.search.asked import Budget, budget_of, parse_pins, pin_texts, require_islands
from placer.search.judge import solve_with
from placer.search.played import apart
from placer.search.problem import Pins, Problem, Solution
from placer.search.progress import Progress
from placer.search.progress_line import heard_by, progress_line
from placer.simulator import Timeline
from placer.targets.frameworks.nearest import nearest

if TYPE_CHECKING:
    from placer.tracer.export.exporting import LossFunction
    from placer.tracer.inputs.batches import BatchLike


def capture(
    model: object, *, batch: BatchLike = None, loss_fn: LossFunction | None = None, devices: int = 1,
    opaque: Sequence[str] | Mapping[str, OpaqueCost] = (), granularity: Granularity = "block",
    precision: Precision | None = None,
) -> Graph:  # fmt: skip
    """The immutable Graph of `model`: no weights, no GPU.

    model: an nn.Module (meta is fine), `package.module:factory`, or a Hugging Face config (object or path of its JSON).
    batch: tensors or shapes of the global batch by input name, `ROWSxLENGTH`, or None for what the model's own
    configuration implies with one row per device; a `placer.Constant` for an input that is the same in every step, so
    that forward may read its values. loss_fn(output, batch) where the model returns no loss itself.
    opaque: submodules that are not looked into (`["router"]`), with what they cost where that is known
    (`{"router": OpaqueCost(seconds=1e-4)}`); those that cannot be exported are found and noted.
    granularity: what is placed whole: "block", a layer or what stands for one, or "op", a single operator.
    precision: of the runs that the graph is for, as in RunSettings; None for the types that the model has.
    Raises CaptureError naming the source line.
    """
    from placer import tracer

    require_buildable(model)
    return tracer.capture(
        model, batch=batch, loss_fn=loss_fn, devices=devices, opaque=opaque, granularity=granularity,
        precision=precision,
    )  # fmt: skip


def plan(
    model: object,
    cluster_spec: Cluster | str,
    *,
    batch: BatchLike = None,
    loss_fn: LossFunction | None = None,
    settings: RunSettings = RunSettings(),  # noqa: B008 - frozen
    strategy: str = "auto",
    budget: Budget | str | int | None = None,
    seed: int = 0,
    pins: Sequence[str] | Mapping[str, object] | Pins = (),
    opaque: Sequence[str] | Mapping[str, OpaqueCost] = (),
    granularity: Granularity = "block",
    framework: str = "",
    islands: int | None = None,
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The best plan `strategy` finds for one training step of `model` on the cluster.

    cluster_spec: a Cluster, a YAML path, a catalogue name with counts (`h100x8*4`), `local` or `localx4`.
    batch: as for `capture`. loss_fn: too; the ranks import it again, so it stands at the top of a module.
    budget: at most so many evaluated plans, or seconds of search (capture apart) as in "30s", or both ("200,30s");
    then, and on Ctrl-C, the best plan so far with the bound proven so far, and a note on standard error.
    pins: choices that are fixed, as `pipeline=2` or `h.3@stage=1`, or by name, as {"pipeline": 2}.
    opaque, granularity: as for `capture`.
    framework: one that the plan is to be told, as for `placer export`: the fastest plan it has words for.
    islands: populations of the strategy `genetic`, in processes of their own where there are cores, which share its
    budget; by default one, and four of them within 16,000 evaluations or more.
    resume: a file that `genetic` keeps its search in after each epoch; where there is one, the search goes on from it.
    progress: hears of every better plan and bound while the search goes on (`progress.log()` keeps it).
    Without a batch, what was assumed is printed on standard error and recorded in the plan. Raises InfeasibleError with
    what binds.
    """
    file = None if resume is None else Path(resume)
    require_islands(strategy, islands=islands, resume=file, budget=budget_of(budget).evaluations)  # before the capture
    made = problem(
        model, cluster_spec, batch=batch, loss_fn=loss_fn, settings=settings, budget=budget, seed=seed, pins=pins,
        opaque=opaque, granularity=granularity,
    )  # fmt: skip
    if progress is not None:
        progress.begin()
    return solve(replace(made, islands=islands, resume=file, progress=progress), strategy, framework)


def problem(
    model: object,
    cluster_spec: Cluster | str,
    *,
    batch: BatchLike = None,
    loss_fn: LossFunction | None = None,
    settings: RunSettings = RunSettings(),  # noqa: B008 - frozen
    budget: Budget | str | int | None = None,
    seed: int = 0,
    pins: Sequence[str] | Mapping[str, object] | Pins = (),
    opaque: Sequence[str] | Mapping[str, OpaqueCost] = (),
    granularity: Granularity = "block",
) -> Problem:
    """What `plan` searches, the model captured: its arguments are those of `plan`."""
    from placer import tracer

    limits = budget_of(budget)
    if seed not in SEEDS:
        raise UsageError(f"the seed is {seed}; give one from {SEEDS.start} to {SEEDS.stop - 1}")
    cluster = Cluster.load(cluster_spec)
    require_buildable(model)
    resolved = tracer.resolve(model)
    loss = reference_of(loss_fn, "the loss") if loss_fn else ""
    graph = tracer.capture(
        resolved, batch=batch, loss_fn=loss_fn, devices=cluster.size, opaque=opaque, granularity=granularity,
        precision=settings.precision,
    )  # fmt: skip
    for note in graph.notes:
        print(f"placer: {note}", file=sys.stderr)
    _require_trainable(graph)
    return Problem(
        graph=graph,
        cluster=cluster,
        settings=settings,
        model=replace(resolved.ref, loss=loss),
        rows=graph.rows,
        pins=parse_pins(pins, graph),
        seed=seed,
        budget=limits.evaluations,
        until=None if limits.seconds is None else time.perf_counter() + limits.seconds,
    )


def replan(plan: Plan, cluster_spec: Cluster | str, *, strategy: str = "", pins: Sequence[str] | None = None) -> Plan:
    """The same model, batch, settings, seed, pins and islands on another cluster.

    strategy, pins: instead of those asked for then. Blocks are those the plan was captured with; no model is built.
    Raises UsageError for pins that contradict the new cluster, InfeasibleError with what binds.
    """
    _require_plan(plan)
    asked = parse_pins(plan.asked.pins if pins is None else pins, plan.graph)
    again = replace(problem_again(plan), cluster=Cluster.load(cluster_spec), pins=asked)
    if strategy in ("", plan.asked.strategy):
        again = replace(again, islands=plan.asked.islands)
    return solve(again, strategy or plan.asked.strategy)


def problem_again(plan: Plan) -> Problem:
    """What a plan was an answer to, without pins and islands: its graph, cluster, settings, rows, seed and budget."""
    return Problem(
        graph=plan.graph,
        cluster=plan.cluster,
        settings=plan.settings,
        model=plan.model,
        rows=plan.rows,
        seed=plan.seed,
        budget=plan.asked.budget,
    )


def _require_trainable(graph: Graph) -> None:
    if graph.loss.reduction == "none":
        raise UsageError(
            f"{graph.name} gives no loss for this batch, and a training step needs one; give the inputs from which the "
            "model computes its loss (labels), or a loss of your own: --loss package.module:function, a function of "
            f"(output, batch) that returns one number (loss_fn=function in Python){graph.loss.why and '; '}"
            f"{graph.loss.why}"
        )
    if not graph.parameter_bytes:
        raise UsageError(
            f"no parameter of {graph.name} is part of its loss: there is nothing to train and nothing to place; of "
            "modules in plain lists and dicts a run sees no parameters: keep them in nn.ModuleList or nn.ModuleDict"
        )


def solve(problem: Problem, strategy: str = "auto", framework: str = "") -> Plan:
    """The judged plan of one strategy, with its bound, its runners-up and what was assumed; raises InfeasibleError.

    framework: as for `plan`.
    """
    with progress_line(problem.until), heard_by(problem.progress):
        found = nearest(problem, framework, strategy) if framework else solve_with(problem, strategy)
    return completed(problem, found, strategy)


def completed(problem: Problem, found: Solution, strategy: str = "auto") -> Plan:
    """The plan of a judged solution with what was assumed and asked, ready to save."""
    best = found.plan
    early = (f"{ENDED[found.ended]}: this is the best plan so far, {_proven(best)}",) if found.ended else ()
    for note in early:
        print(f"placer: {note}", file=sys.stderr)
    whole = (f"the batch is not divided, neither over replicas nor in microbatches: {problem.whole_batch}",)
    notes = (*problem.graph.notes, *(whole if problem.whole_batch else ()))
    assumptions = tuple(dict.fromkeys((*notes, *best.assumptions, *apart(problem, best), *early)))
    asked = Asked(
        strategy=strategy, pins=pin_texts(problem.pins), budget=problem.budget, islands=problem.islands
    )  # fmt: skip
    return replace(best, assumptions=assumptions, versions=versions(), asked=asked)


ENDED = {
    "interrupt": "the search was interrupted",
    "evaluations": "the evaluations of the budget are used up",
    "seconds": "the seconds of the budget are over",
}


def _proven(best: Plan) -> str:
    """What is known of how far a plan is from the best."""
    return "nothing is proven about better ones" if best.gap is None else f"at most {best.gap:.1%} from the best one"


def estimate(plan: Plan) -> Ledger:
    """Predicted seconds and bytes of one step by the closed form: what searches compare.

    Raises IllegalPlanError for a plan that breaks a rule, as an edited one may; where only memory binds, there are
    numbers.
    """
    _require_legal(plan)
    return estimates.estimate(plan)


def simulate(plan: Plan) -> Timeline:
    """The step played event by event: its slices, and its ledger. Raises IllegalPlanError as `estimate` does."""
    _require_legal(plan)
    return simulator.simulate(plan)


def _require_legal(plan: Plan) -> None:
    _require_plan(plan)
    broken = legality.but_memory(legality.check(plan, lowered=False))
    if broken:
        raise legality.error_of(broken)


def _require_plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise UsageError(f"{plan!r:.80} is no plan; give what placer.plan returned, or Plan.load('plan.json')")
