"""How replicas on GPUs and on CPUs sum: the way of each sum, and the seconds by which it was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from placer.costs.communication.mixed_allreduce import RouteName
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.buckets import gradient_buckets
from placer.program.instructions import Collective
from placer.program.mixed_allreduce import SumStep, route_seconds, route_steps, sum_route
from placer.program.ranks import like_ranks
from placer.report.printing import bytes_text, seconds_text

NAMES: dict[RouteName, str] = {
    "host": "through the hosts",
    "hosts": "through the hosts, first each of them by itself",
    "device": "through the GPUs",
}


def route_text(plan: Plan, entry: Collective, rank: int) -> str:
    """`through the hosts in 1.2 ms (...): copy out, ...`: why, and what `rank` does; "" for other collectives."""
    if entry.way is None:
        return ""
    done = ", ".join(map(_step_text, route_steps(entry.way, rank)))
    return f"{_chosen(_seconds(plan, entry), entry.way.kind)}: {done}"


def route_document(plan: Plan, entry: Collective, rank: int) -> dict[str, JsonValue]:
    """The same for machines; empty for other collectives."""
    if entry.way is None:
        return {}
    done: list[JsonValue] = [
        {"do": step.do, "ranks": list(step.ranks), "on": step.on} for step in route_steps(entry.way, rank)
    ]
    return {
        "way": entry.way.kind,
        "way_seconds": dict(_seconds(plan, entry).items()),
        "steps": done,
    }


def stages_text(plan: Plan) -> Iterator[str]:
    """A line for each stage whose replicas are on both kinds of device, about its largest bucket of gradients."""
    for index, (stage, position) in enumerate(zip(plan.stages, position_of(plan), strict=True)):
        if not plan.cluster.unlike(stage.leaders):
            continue
        size = max((bucket.bytes for bucket in gradient_buckets(plan, index)), default=0)
        ranks = like_ranks(plan, position)
        way = sum_route(plan, ranks, size, stage.degree)
        if way is not None and size:
            found = route_seconds(plan, ranks, size, stage.degree)
            yield f"stage {index} sums gradients ({bytes_text(size)}) of GPUs and CPUs {_chosen(found, way.kind)}"


def _seconds(plan: Plan, entry: Collective) -> dict[RouteName, float]:
    degree = plan.stages[entry.stage].degree if entry.purpose == "gradients" else 1
    return route_seconds(plan, entry.ranks, entry.bytes, degree)


def _chosen(found: Mapping[RouteName, float], kind: RouteName) -> str:
    others = (f"{NAMES[other]} {seconds_text(found[other])}" for other in found if other != kind)
    return f"{NAMES[kind]} in {seconds_text(found[kind])} ({'; '.join(others)})"


def _step_text(step: SumStep) -> str:
    if step.do in ("copy out", "copy in"):
        return step.do
    if step.do == "add":
        return f"add what rank {step.ranks[0]} sends"
    if step.do in ("send", "receive"):
        return f"{step.do} {'to' if step.do == 'send' else 'from'} rank {step.ranks[0]}"
    return f"{step.do} over ranks {', '.join(map(str, step.ranks))} on the {step.on}"
