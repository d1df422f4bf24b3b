"""METIS: parts of equal seconds with the least edge weight between them (Karypis and Kumar, SIAM J. Sci. Comp. 1998).

Groups are vertices, weighted by mean seconds; edges by the seconds that they would take between two devices. Devices
get shares by their speed, those much slower than the others none. METIS knows neither order nor memory nor which device
may run what: groups that do not fit where they are go, the largest first, to the device with most room, and whether
parts wait for each other in a cycle is for the judge to see.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from placer.errors import Infeasible, require_extra
from placer.strategies.lists.loads import speeds
from placer.strategies.lists.schedule import MEMORY_ROUNDING
from placer.strategies.lists.task_graph import TaskGraph

EXTRA = "partition"
# METIS counts in whole numbers of 32 bits: all weights of a kind sum to about this.
WHOLE = 1_000_000
# Devices slower than this share of the fastest get no part.
LEAST_SPEED = 0.02


def metis(tasks: TaskGraph) -> tuple[int, ...] | Infeasible:
    """The placement by METIS, made to fit. Raises UsageError naming the extra where pymetis is not installed."""
    pymetis = require_extra(EXTRA, "pymetis")
    groups = list(tasks.groups)
    devices, shares = _shares(tasks, len(groups))
    parts: Sequence[int] = [0] * len(groups)
    if len(devices) > 1:
        starts, ends, weights = _adjacency(tasks, groups)
        with _silent():
            found = pymetis.part_graph(
                len(devices), pymetis.CSRAdjacency(adj_starts=starts, adjacent=ends),
                vweights=_whole([math.fsum(tasks.mean_seconds[t] for t in tasks.groups[g]) for g in groups], least=0),
                eweights=_whole(weights, least=1), tpwgts=shares, options=pymetis.Options(seed=0), recursive=True,
            )  # fmt: skip
        parts = found.vertex_part
    return _fitted(tasks, {group: devices[part] for group, part in zip(groups, parts, strict=True)})


def _adjacency(tasks: TaskGraph, groups: list[int]) -> tuple[list[int], list[int], list[float]]:
    """Neighbours of each vertex, one after the other, with the weights of the edges; each edge in both directions."""
    number = {group: index for index, group in enumerate(groups)}
    near: list[dict[int, float]] = [{} for _ in groups]
    for edge in tasks.edges:
        a, b = number[tasks.group[edge.source]], number[tasks.group[edge.target]]
        if a != b:
            for one, other in ((a, b), (b, a)):
                near[one][other] = near[one].get(other, 0.0) + tasks.mean_transfer(edge)
    starts = [0]
    for own in near:
        starts.append(starts[-1] + len(own))
    return starts, [b for own in near for b in sorted(own)], [own[b] for own in near for b in sorted(own)]


def _whole(weights: Sequence[float], *, least: int) -> list[int]:
    total = math.fsum(weights)
    return [max(least, round(WHOLE * weight / total)) if total else 1 for weight in weights]


def _shares(tasks: TaskGraph, most: int) -> tuple[list[int], list[float]]:
    """The devices that get a part, at most so many, and the share of each by its speed; the much slower get none."""
    rates = speeds(tasks)
    fastest = sorted(tasks.devices, key=lambda device: -rates[device])[:most]
    devices = sorted(device for device in fastest if rates[device] >= LEAST_SPEED * max(rates))
    whole = math.fsum(rates[device] for device in devices)
    return devices, [rates[device] / whole for device in devices]


@contextmanager
def _silent() -> Iterator[None]:
    """METIS prints what it dislikes, from C, to standard output; a part may stay empty, which is no harm."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            yield
            ctypes.CDLL(None).fflush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _fitted(tasks: TaskGraph, home: dict[int, int]) -> tuple[int, ...] | Infeasible:
    """With groups moved from where they may not be, or do not fit, to where most is left."""
    size = {group: math.fsum(tasks.size[task] for task in own) for group, own in tasks.groups.items()}
    room = [memory * (1 + MEMORY_ROUNDING) for memory in tasks.memory]
    moving = []
    for group in sorted(home, key=lambda g: -size[g]):
        if size[group] <= room[home[group]] and _runs(tasks, group, home[group]):
            room[home[group]] -= size[group]
        else:
            moving.append(group)
    for group in moving:
        fits = [d for d in tasks.devices if size[group] <= room[d] and _runs(tasks, group, d)]
        if not fits:
            return Infeasible(
                binding=f"memory: METIS leaves {len(moving)} parts without room, and the {size[group]:.0f} bytes of "
                f"{tasks.names[tasks.groups[group][0]]} fit nowhere beside the others",
                advice="Another strategy, more memory or more devices may do",
            )
        home[group] = max(fits, key=lambda device: (room[device], -device))
        room[home[group]] -= size[group]
    return tuple(home[group] for group in tasks.group)


def _runs(tasks: TaskGraph, group: int, device: int) -> bool:
    return all(math.isfinite(tasks.seconds[task][device]) for task in tasks.groups[group])
