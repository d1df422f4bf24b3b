"""Pins that contradict another pin, the graph, the cluster or the settings: found before anything is searched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import get_args

from placer.cluster.topology import replica_groups
from placer.costs.communication.reductions import reductions
from placer.errors import Infeasible, UsageError
from placer.plans.plan import BY_FSDP, ROWS_APART, Sharding
from placer.plans.schedule import BRANCHED, SPLIT_BACKWARD
from placer.rules.expert_loads import expert_counts
from placer.rules.opaque import is_part, part_name
from placer.search.asked import each_dropped, pin_texts
from placer.search.problem import Pins, Problem
from placer.strategies.space.axes import row_lengths
from placer.strategies.space.outline import FIXED, MOST_VIRTUAL, microbatch_rows, schedule_name, whole_batch


def require_pins(problem: Problem) -> None:
    """Raise UsageError naming both sides where a pin contradicts another, the graph, the cluster or the settings."""
    _require_known(problem.pins)
    for complaint in _contradictions(problem):
        raise UsageError(f"{complaint}; drop or change one of them")


def _require_known(pins: Pins) -> None:
    counts = (("data", pins.data), ("pipeline", pins.pipeline), ("microbatches", pins.microbatches), *pins.axes)
    for name, value in counts:
        if value is not None and value < 1:
            raise UsageError(f"pin {name}={value}: give a number of at least 1")
    if pins.schedule is not None:
        schedule_name(pins.schedule)
    if pins.shard is not None and pins.shard not in get_args(Sharding):
        raise UsageError(f"pin shard={pins.shard} is unknown; known: {', '.join(get_args(Sharding))}")


def _contradictions(problem: Problem) -> Iterator[str]:
    pins, rows = problem.pins, problem.rows
    blocks, devices = len(problem.graph.blocks), problem.cluster.size
    pipeline, data, count = pins.pipeline or 1, pins.data or 1, pins.microbatches or 1
    if pipeline > blocks:
        yield f"pin pipeline={pipeline} contradicts the model: it has {_counted(problem)}"
    if pipeline > devices or data > devices:
        name, value = ("pipeline", pipeline) if pipeline > devices else ("data", data)
        yield f"pin {name}={value} contradicts the cluster {problem.cluster.name}: it has {devices} devices"
    if pipeline * data > devices:
        yield f"pins pipeline={pipeline} and data={data} need {pipeline * data} devices, the cluster has {devices}"
    split = [(axis, degree) for axis, degree in pins.axes if degree and degree > 1]
    names, degree = " and ".join(f"{axis}={count}" for axis, count in split), prod(count for _, count in split)
    if len(split) > 2:
        yield f"pins {names} together: a replica's devices lie along two axes at most"
    elif {axis for axis, _ in split} == {"sequence", "expert"}:
        yield f"pins {names} together: experts take all tokens of a row"
    elif {axis for axis, _ in split} == set(ROWS_APART):
        yield f"pins {names} together: along both each device has rows of its own; pin one of them"
    if split and pipeline * data * degree > devices:
        found = pipeline * data * degree
        yield f"pin {names} with pipeline={pipeline} and data={data} needs {found} devices of {devices}"
    elif split and not replica_groups(problem.cluster, degree):
        yield f"pin {names} contradicts the cluster {problem.cluster.name}: no {degree} of its devices make a replica"
    yield from _axis_contradictions(problem)
    if data > rows:
        yield f"pin data={data} contradicts the batch of {rows} rows: every replica needs a row"
    elif pins.microbatches and -(-rows // -(-rows // count)) != count:
        likely = sorted({-(-rows // r) for r in range(1, rows + 1)}, key=lambda m: (abs(m - count), m))[:2]
        yield (
            f"pin microbatches={count} contradicts the batch of {rows} rows: only the last microbatch may be smaller, "
            f"so {' or '.join(map(str, likely))} microbatches are possible"
        )
    elif pins.microbatches and not microbatch_rows(problem, data):
        yield f"pins microbatches={count} and data={data} contradict the batch of {rows} rows: some replica has none"
    if whole_batch(problem) and (data > 1 or count > 1):
        name, value = ("data", data) if data > 1 else ("microbatches", count)
        instead = (
            f"; pin rows={value} to give the devices of one replica rows of their own, which exchange what mixes them"
        )
        hint = "" if (pins.rows or 1) > 1 else instead
        yield f"pin {name}={value} contradicts the model, whose batch may not be divided: {problem.whole_batch}{hint}"
    yield from _schedule_contradictions(problem)
    yield from _reduction_contradictions(problem)
    yield from _stage_contradictions(problem)


#: A model may gather each row's weights, or go through its experts in a loop, and know no more of them than that.
_UNGROUPED = (
    " that can be spread: none of its ops is a product of rows that are grouped by expert (torch's grouped_mm, which "
    'transformers calls with experts_implementation="grouped_mm")'
)


def _axis_contradictions(problem: Problem) -> Iterator[str]:
    """What the model has too few of for the pinned axes."""
    expert, sequence = problem.pins.expert or 1, problem.pins.sequence or 1
    experts, tokens = expert_counts(problem.graph), row_lengths(problem.graph)
    if expert > 1 and not experts:
        parts = (part_name(op) for _, op in problem.graph.ops if is_part(op))
        where = next((f" outside of {part}, which is opaque and stays whole" for part in parts), _UNGROUPED)
        yield f"pin expert={expert} contradicts the model {problem.graph.name}: it has no experts{where}"
    elif expert > 1 and experts[0] < expert:
        yield f"pin expert={expert} contradicts the model: a layer has {experts[0]} experts, every device needs one"
    apart = next(((axis, count) for axis, count in problem.pins.axes if axis in ROWS_APART and (count or 1) > 1), None)
    if apart is not None and problem.rows % ((apart[1] or 1) * (problem.pins.data or 1)):
        each = f" of {problem.pins.data} replicas" if problem.pins.data else ""
        yield (
            f"pin {apart[0]}={apart[1]} contradicts the batch of {problem.rows} rows: the {apart[1]} devices{each} "
            "have equally many rows each"
        )
    if sequence > 1 and not tokens:
        yield f"pin sequence={sequence} contradicts the model {problem.graph.name}: its blocks pass no sequences on"
    elif sequence > 1 and all(length % sequence for length in tokens):
        lengths = " and ".join(map(str, tokens))
        yield f"pin sequence={sequence} contradicts the batch: its sequences of {lengths} tokens do not divide by it"


def _schedule_contradictions(problem: Problem) -> Iterator[str]:
    pins, blocks = problem.pins, len(problem.graph.blocks)
    if pins.schedule == "interleaved":
        if pins.pipeline == 1:
            yield "pins schedule=interleaved and pipeline=1 contradict: interleaving needs two positions"
        if blocks < 2 * (pins.pipeline or 2):
            yield (
                f"pin schedule=interleaved contradicts the model: {pins.pipeline or 2} positions of two stages "
                f"need {2 * (pins.pipeline or 2)} blocks, it has {_counted(problem)}"
            )
    if pins.shard not in (None, "none") and pins.data == 1:
        yield f"pins shard={pins.shard} and data=1 contradict: state is sharded over replicas"
    if pins.shard in BY_FSDP and pins.schedule in SPLIT_BACKWARD:
        yield f"pins shard={pins.shard} and schedule={pins.schedule} contradict: sharded state needs whole backwards"
    if pins.shard in BY_FSDP and problem.mixed_types:
        yield (
            f"pin shard={pins.shard} contradicts the model: {problem.mixed_types}, which FSDP2 does not shard together "
            "(shard=optimizer or none do not use it)"
        )
    fixed = FIXED.get(problem.settings.recompute)
    if None not in (fixed, pins.recompute) and fixed != pins.recompute:
        wanted = str(pins.recompute).lower()
        yield f"pin recompute={wanted} contradicts the setting recompute={problem.settings.recompute}"


def _reduction_contradictions(problem: Problem) -> Iterator[str]:
    """What forbids every stage to sum gradients in the pinned way."""
    pins, cluster = problem.pins, problem.cluster
    if pins.reduction in (None, "flat"):
        return
    if pins.reduction not in reductions(cluster, [d for d, own in enumerate(cluster.devices) if own.backend == "cpu"]):
        several = ", some of them on one" * (pins.reduction == "hierarchical")
        yield (
            f"pin reduction={pins.reduction} contradicts the cluster {cluster.name}: gradients are summed so over CPUs "
            f"on several nodes{several}, elsewhere as the devices' library does"
        )
    if pins.data == 1:
        yield f"pins reduction={pins.reduction} and data=1 contradict: gradients are summed over replicas"
    if pins.shard in BY_FSDP:
        yield f"pins reduction={pins.reduction} and shard={pins.shard} contradict: only whole gradients are summed so"


def _stage_contradictions(problem: Problem) -> Iterator[str]:
    names = [block.name for block in problem.graph.blocks]
    for name, _ in problem.pins.stage_of:
        if name not in names:
            raise UsageError(f"pin {name}@stage: the model has no block {name}; its blocks: {_some(names)}")
    ordered = sorted((names.index(name), stage, name) for name, stage in problem.pins.stage_of)
    for (i, low, first), (j, high, second) in pairwise(ordered):
        if not low <= high <= low + j - i:
            why = "a stage would be empty" if high > low else "stages follow the order of the blocks"
            yield f"pins {first}@stage={low} and {second}@stage={high} contradict: {why}"
    for index, stage, name in ordered:
        if stage < 0 or stage > index:
            yield f"pin {name}@stage={stage} contradicts the model: only {index} blocks come before it"
        most = (problem.pins.pipeline or problem.cluster.size) * MOST_VIRTUAL
        if problem.pins.schedule not in (None, "interleaved", *BRANCHED):
            most = problem.pins.pipeline or problem.cluster.size
        if stage >= most:
            known = (
                f"pin pipeline={problem.pins.pipeline}" if problem.pins.pipeline else f"{problem.cluster.size} devices"
            )
            yield f"pin {name}@stage={stage} contradicts {known}: there are at most {most} stages, counted from 0"


def _counted(problem: Problem) -> str:
    """How many blocks the model has, and how it has more."""
    count = len(problem.graph.blocks)
    finer = " (--granularity op makes one of every op)" if problem.graph.granularity == "block" else ""
    return f"{count} block{'s' * (count != 1)}{finer}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def no_layout(problem: Problem, has_layout: Callable[[Problem], bool] = lambda _: False) -> Infeasible:
    """That the pins of a problem have no layout of its model on its cluster; `has_layout` says of fewer whether they
    do."""
    asked = pin_texts(problem.pins)
    together = f"the pins {', '.join(asked)} together leave"
    which = {0: "there is", 1: f"the pin {''.join(asked)} leaves"}.get(len(asked), together)
    spare = [text for text, others in each_dropped(problem.pins) if has_layout(replace(problem, pins=others))]
    advice = f"Without {', or without '.join(spare)} there may be one" if spare else "Drop or change one of them"
    return Infeasible(binding=f"{which} no layout of this model on this cluster", advice=advice)
