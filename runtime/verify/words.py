"""What verify says about itself: what was compared with what, what was handed over, what was left out."""

from __future__ import annotations

from placer.graph import Graph
from placer.plans.plan import Plan
from placer.runtime.verify.batches import left_out
from placer.runtime.verify.held import Judge
from placer.runtime.verify.judged import Subject


def compared_told(judge: Judge, graph: Graph, steps: int) -> str:
    """What was compared in one precision."""
    run, kept = judge.run, set(judge.run.model.state_dict())
    buffers = [name for name, _ in run.model.named_buffers() if name in kept]
    weights = len({id(parameter) for parameter in run.model.parameters()})
    limit, name = run.settings.clip_norm, "SGD" if run.settings.optimizer == "sgd" else "AdamW"
    norm = "no norm, as nothing is clipped" if limit is None else "their norm before clipping"
    evaluated = "" if graph.evaluation else " the loss in evaluation after the last,"
    said = "; the exact values are those of float64" if judge.exact is not None else ""
    return (
        f"{steps} steps in {judge.precision}{judge.summing.told}: the loss, {len(run.learnt)} gradients, {norm}, "
        f"{weights} weights and {len(buffers)} buffers after each step,{evaluated} with those of the model itself: "
        f"eager, uncut, the whole batch at once on one device, updated by torch's {name}{said}"
    )


def casts_told(subject: Subject, relative: float) -> tuple[str, ...]:
    """What the model's own types mean for what may differ."""
    if subject.precision != "float64":
        return ()
    if not subject.casts:
        return ("the model computes in float64 throughout",)
    narrow, places = next(iter(subject.casts.items()))
    return (f"the model casts to {narrow} inside ({', '.join(places[:4])}): tolerance {relative:.0e}",)


def handed_told(judge: Judge) -> tuple[str, ...]:
    """What the judge does not find in the model, and what is in the model and not compared."""
    kept = set(judge.run.model.state_dict())
    unsaved = [name for name, _ in judge.run.model.named_buffers() if name not in kept]
    dropped = "masks of dropout and random numbers, keyed by seed, step, op and row, were handed to the one device"
    left = f"not compared: {len(unsaved)} buffers that the model does not save ({', '.join(unsaved[:3])})"
    return (*((dropped,) if judge.run.dropping else ()), *((left,) if unsaved else ()))


def evaluation_told(plan: Plan) -> tuple[str, ...]:
    """That the loss in evaluation was not compared, as no run gives it."""
    why = plan.graph.evaluation
    return (f"the loss in evaluation was not compared, which a run refuses to give: {why}",) if why else ()


def labels_told(plan: Plan) -> tuple[str, ...]:
    """Which labels the random batches leave out."""
    found = left_out(plan.graph)
    if not found:
        return ()
    return (f"labels were left out unevenly: {', '.join(f'{name} ({number})' for name, number in found.items())}",)
