"""How replicas on GPUs and on CPUs, or on several hosts, sum: the way of each sum, and the seconds of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from placer.costs.communication.reductions import reduction_seconds
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.buckets import between_replicas, gradient_buckets
from placer.program.instructions import Collective
from placer.program.mixed_allreduce import SumRoute, SumStep, route_seconds, route_steps, sum_route
from placer.program.ranks import like_ranks
from placer.program.reductions import ServerRoute
from placer.report.printing import bytes_text, seconds_text

NAMES: dict[str, str] = {
    "host": "through the hosts",
    "hosts": "through the hosts, first each of them by itself",
    "device": "through the GPUs",
    "flat": "by gloo's ring",
    "hierarchical": "first in each host, then between them",
    "server": "by a server",
}


def route_text(plan: Plan, entry: Collective, rank: int) -> str:
    """`through the hosts in 1.2 ms (...): copy out, ...`: why, and what `rank` does; "" for other collectives."""
    if entry.way is None:
        return ""
    return f"{_chosen(_seconds(plan, entry), _kind(plan, entry))}: {', '.join(_told(entry.way, rank))}"


def route_document(plan: Plan, entry: Collective, rank: int) -> dict[str, JsonValue]:
    """The same for machines; empty for other collectives."""
    if entry.way is None:
        return {}
    seconds: dict[str, JsonValue] = dict(_seconds(plan, entry).items())
    found: dict[str, JsonValue] = {"way": _kind(plan, entry), "way_seconds": seconds}
    if isinstance(entry.way, ServerRoute):
        return {**found, "server": entry.way.server}
    done: list[JsonValue] = [
        {"do": step.do, "ranks": list(step.ranks), "on": step.on} for step in route_steps(entry.way, rank)
    ]
    return {**found, "steps": done}


def stages_text(plan: Plan) -> Iterator[str]:
    """A line for each stage that a library does not sum by itself, about its largest bucket of gradients."""
    for index, (stage, position) in enumerate(zip(plan.stages, position_of(plan), strict=True)):
        if stage.reduction == "flat" and not plan.cluster.unlike(stage.leaders):
            continue
        buckets = gradient_buckets(plan, index)
        size = max((between_replicas(one.dtype, one.bytes, plan.settings)[1] for one in buckets), default=0)
        ranks = like_ranks(plan, position)
        if stage.reduction != "flat":
            devices = tuple(plan.ranks[rank] for rank in ranks)
            ways = dict[str, float](reduction_seconds(plan.cluster, devices, size, stage.degree).items())
            yield f"stage {index} sums gradients ({bytes_text(size)}) over its nodes {_chosen(ways, stage.reduction)}"
            continue
        way = sum_route(plan, ranks, size, stage.degree)
        if way is not None and size:
            found = dict[str, float](route_seconds(plan, ranks, size, stage.degree).items())
            yield f"stage {index} sums gradients ({bytes_text(size)}) of GPUs and CPUs {_chosen(found, way.kind)}"


def _kind(plan: Plan, entry: Collective) -> str:
    """The name of the way of a sum that has one."""
    if entry.way is None:
        return "flat"
    return entry.way.kind if _unlike(plan, entry) or entry.way.kind == "server" else "hierarchical"


def _seconds(plan: Plan, entry: Collective) -> dict[str, float]:
    degree = plan.stages[entry.stage].degree if entry.purpose == "gradients" else 1
    if _unlike(plan, entry):
        return dict(route_seconds(plan, entry.ranks, entry.bytes, degree).items())
    devices = tuple(plan.ranks[rank] for rank in entry.ranks)
    return dict(reduction_seconds(plan.cluster, devices, entry.bytes, degree).items())


def _unlike(plan: Plan, entry: Collective) -> bool:
    return plan.cluster.unlike(plan.ranks[rank] for rank in entry.ranks)


def _told(way: SumRoute | ServerRoute, rank: int) -> Iterator[str]:
    """What a rank does."""
    if not isinstance(way, ServerRoute):
        yield from map(_step_text, route_steps(way, rank))
    elif rank == way.server:
        yield f"add what ranks {', '.join(map(str, way.served))} send, piece by piece, and send them the sums"
    else:
        yield f"send to rank {way.server}, piece by piece, and receive the sums"


def _chosen(found: Mapping[str, float], kind: str) -> str:
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
