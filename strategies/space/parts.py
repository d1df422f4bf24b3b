"""Parts: machines in an order that is not the file's, and what of them is worth a search of its own.

A search that looks at some plans of very many finds others where devices are listed another way, and more devices may
hide what it finds on fewer. So it is asked about all of them, the fast ones listed first, then about parts alone:

    classes   of unlike devices those of each class (`device_orders.group_classes`)
    nodes     of several nodes one of each kind

A part is left out that takes longer at the peak of its chips than the best plan does. Plans of a part are plans of the
whole, and are judged as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from placer.cluster.cluster import Cluster, Device, Node
from placer.errors import Infeasible, UsageError
from placer.search.judge import ROUNDING, Verdict, judge
from placer.search.problem import Problem, Solution
from placer.strategies.space.device_orders import Subcluster, group_classes, subcluster
from placer.strategies.space.pin_conflicts import require_pins

# Parts beside the whole that are searched, the fastest first.
MOST_PARTS = 4

Solve: TypeAlias = Callable[[Problem], Solution | Infeasible]


def best_of_parts(problem: Problem, solve: Solve) -> Solution | Infeasible:
    """The best plan that `solve` finds for all devices, or for a part of them with what is left of a budget; why there
    is none for all."""
    whole, found_parts = listed_by_speed(problem.cluster), parts(problem.cluster)
    if whole.cluster is problem.cluster and not found_parts:
        return solve(problem)
    best: Verdict | None = None
    judged = 0
    for part in (whole, *found_parts):
        asked = _asked(problem, part, judged, best)
        if asked is None:
            continue
        found = solve(asked)
        if isinstance(found, Infeasible):
            judged = problem.budget or 0  # what it looked at is not told
            continue
        judged += found.evaluations
        verdict = judge(problem.costs, part.lifted(found.plan, problem.cluster), lowered=False)
        if verdict.legal and (best is None or verdict.seconds < best.seconds * (1 - ROUNDING)):
            best = verdict
            problem.found(verdict.seconds)
    # The reason why there is none names devices as the file lists them.
    return solve(_less(problem, judged)) if best is None else Solution(plan=best.plan, evaluations=judged)


def best_by_speed(problem: Problem, solve: Solve) -> Solution | Infeasible:
    """What `solve` finds where devices are listed by speed, whatever their order."""
    whole = listed_by_speed(problem.cluster)
    if whole.cluster is problem.cluster:
        return solve(problem)
    known = tuple(whole.lowered(plan) for plan in problem.known_plans)
    found = solve(replace(problem, cluster=whole.cluster, known_plans=known))
    if isinstance(found, Infeasible):
        return solve(_less(problem, problem.budget or 0))  # for a reason that names devices as the file lists them
    verdict = judge(problem.costs, whole.lifted(found.plan, problem.cluster))
    return replace(found, plan=verdict.plan) if verdict.legal else solve(_less(problem, found.evaluations))


def _less(problem: Problem, judged: int) -> Problem:
    """The problem with what is left of a budget, one evaluation at least."""
    return problem if problem.budget is None else replace(problem, budget=max(1, problem.budget - judged))


def listed_by_speed(cluster: Cluster) -> Subcluster:
    """The same devices, the fastest of each node and the fastest node first; nodes that levels group stay in order."""
    made: list[tuple[Node, tuple[int, ...]]] = []
    start = 0
    for node in cluster.nodes:
        made.append(_by_speed(node, start))
        start += node.size
    if not any(level.nodes for level in cluster.levels):
        made.sort(key=lambda entry: _node_worth(entry[0]), reverse=True)
    devices = tuple(device for _, own in made for device in own)
    if devices == tuple(range(cluster.size)):
        return Subcluster(cluster=cluster, devices=devices)
    groups = tuple((node, len(list(alike))) for node, alike in groupby(node for node, _ in made))
    return Subcluster(cluster=replace(cluster, groups=groups), devices=devices)


def parts(cluster: Cluster) -> tuple[Subcluster, ...]:
    """The parts of two devices or more that are searched alone, each listed by speed, the fastest first."""
    found = [part for part in dict.fromkeys(_kept(cluster)) if 1 < len(part) < cluster.size]
    found.sort(key=lambda part: sum(_worth(cluster.devices[device])[0] for device in part), reverse=True)
    return tuple(_part(cluster, part) for part in found[:MOST_PARTS])


def hurried_on_unlike(problem: Problem) -> bool:
    """Whether seconds may end an exact search before it has plans of unlike devices, as list schedulers soon do."""
    return problem.until is not None and len(set(problem.cluster.devices)) > 1


def _asked(problem: Problem, part: Subcluster, judged: int, best: Verdict | None) -> Problem | None:
    """What is asked of a part; None where there is nothing to hope for."""
    left = None if problem.budget is None else problem.budget - judged
    if best is not None and (problem.spent or best.seconds <= _least_seconds(problem, part)):
        return None
    if left is not None and left <= 0:
        return None
    asked = replace(problem, cluster=part.cluster, progress=None, known_plans=(), budget=left)
    try:
        require_pins(asked)
    except UsageError:  # pins that only the whole can honour
        return None
    return asked


def _least_seconds(problem: Problem, part: Subcluster) -> float:
    """What the model's products take at the peak of all chips of a part."""
    graph = problem.graph
    ops = (op for block in graph.blocks for op in graph.classes[block.kind].ops)
    flops = sum(op.forward_flops.at(problem.rows) + op.backward_flops.at(problem.rows) for op in ops)
    return float(flops) / sum(max(rate for _, rate in device.rates) for device in part.cluster.devices)


def _kept(cluster: Cluster) -> Iterator[frozenset[int]]:
    """The devices of each class, and of one node of each kind."""
    for own in group_classes(cluster, 1):
        yield frozenset(device for (device,) in own)
    for first in {replace(node, name=""): n for n, node in reversed([*enumerate(cluster.nodes)])}.values():
        yield frozenset(device for device, node in enumerate(cluster.node_of) if node == first)


def _part(cluster: Cluster, kept: frozenset[int]) -> Subcluster:
    own = subcluster(cluster, kept)
    listed = listed_by_speed(own.cluster)
    return Subcluster(cluster=listed.cluster, devices=tuple(own.devices[device] for device in listed.devices))


def _by_speed(node: Node, start: int) -> tuple[Node, tuple[int, ...]]:
    """A node and its devices, whose first one is `start`, the fastest first."""
    chips = [chip for chip, count in node.devices for _ in range(count)]
    order = sorted(range(node.size), key=lambda index: _worth(chips[index]), reverse=True)
    devices = tuple(start + index for index in order)
    if order == list(range(node.size)):
        return node, devices
    alike = tuple((chip, len(list(own))) for chip, own in groupby(chips[index] for index in order))
    return replace(node, devices=alike), devices


def _worth(chip: Device) -> tuple[float, ...]:
    return chip.rate("float32"), chip.memory_bytes, chip.memory_bandwidth


def _node_worth(node: Node) -> tuple[float, ...]:
    ways = (link.bandwidth for link in (node.link, node.nic) if link is not None)
    return sum(_worth(chip)[0] * count for chip, count in node.devices), node.size, *ways
