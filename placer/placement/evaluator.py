"""The one evaluator of placements: the load of every device, and the finish time of a single sample.

Load of an accelerator with the set S of nodes = sum of S's accelerator times + the `send` of every node with an edge
that crosses the boundary of S, in or out, each node once. Load of a CPU = the sum of its nodes' host times.
Throughput: the largest load. Latency: an accelerator runs its set in one go, after everything it reads is in host
memory; finish = start + what comes in + compute + what goes out; every host node has a CPU to itself.
(Tarnawski et al., NeurIPS 2020, sections 3 and 4: "communication not overlapped with compute".)
"""

from __future__ import annotations

import math

from placer.errors import UsageError
from placer.placement.problem import Placement, PlacementProblem


def crossings(problem: PlacementProblem, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """For each device, the nodes whose output crosses its boundary, in or out, each once."""
    found: list[list[int]] = [[] for _ in range(problem.devices)]
    for node, readers in enumerate(problem.successors):
        home = placement[node]
        others = {placement[reader] for reader in readers} - {home}
        for device in others | ({home} if others else set()):
            found[device].append(node)
    return tuple(tuple(nodes) for nodes in found)


def device_loads(problem: PlacementProblem, placement: Placement) -> tuple[float, ...]:
    """The load of each device, accelerators first, in the problem's unit."""
    crossing = crossings(problem, placement)
    members = device_nodes(problem, placement)
    return tuple(
        math.fsum(
            [problem.nodes[node].accelerator for node in members[device]]
            + [problem.nodes[node].send for node in crossing[device]]
        )
        if device < problem.accelerators
        else math.fsum(problem.nodes[node].host for node in members[device])
        for device in range(problem.devices)
    )


def device_nodes(problem: PlacementProblem, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """The nodes of each device, in the order of the file."""
    found: list[list[int]] = [[] for _ in range(problem.devices)]
    for node, device in enumerate(placement):
        found[device].append(node)
    return tuple(tuple(nodes) for nodes in found)


def largest_load(problem: PlacementProblem, placement: Placement) -> float:
    """The time per sample of a pipeline: the largest device load."""
    return max(device_loads(problem, placement))


def finish_time(problem: PlacementProblem, placement: Placement) -> float:
    """When the last node of one sample is done. Raises UsageError where two parts wait for each other."""
    loads = device_loads(problem, placement)
    part = [device if device < problem.accelerators else -1 - node for node, device in enumerate(placement)]
    seconds = {p: loads[p] if p >= 0 else problem.nodes[-1 - p].host for p in part}
    after: dict[int, set[int]] = {p: set() for p in part}
    waiting = dict.fromkeys(part, 0)
    for node, readers in enumerate(problem.successors):
        for reader in readers:
            if part[reader] != part[node] and part[reader] not in after[part[node]]:
                after[part[node]].add(part[reader])
                waiting[part[reader]] += 1
    return _longest_path(seconds, after, waiting)


def _longest_path(seconds: dict[int, float], after: dict[int, set[int]], waiting: dict[int, int]) -> float:
    ready = [part for part, count in waiting.items() if count == 0]
    done = {part: seconds[part] for part in ready}
    for part in ready:  # grows while it is walked
        for reader in sorted(after[part]):
            done[reader] = max(done.get(reader, 0.0), done[part] + seconds[reader])
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(ready) < len(seconds):
        raise UsageError("the finish time of a placement was asked for whose parts wait for each other; no such time")
    return max(done.values())
