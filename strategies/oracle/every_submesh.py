"""Every plan of a small problem whose positions have shapes of their own, for the oracle: by trying all.

In: a Problem and its layouts. Out: plans of two positions or more, each with a number of replicas and a layout of its
own, on like devices of like nodes, behind those of the position before it or on others not used yet. It shares no code
with `submeshes`. Plans whose positions are all alike on devices of one kind are those of `exhaustive`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placer.cluster.cluster import Cluster
from placer.cluster.topology import replica_groups
from placer.plans.plan import Layout, Plan, ScheduleName, Sharding, Stage
from placer.search.problem import Problem
from placer.strategies.oracle.every_order import device_look

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zero-bubble")
SHARDINGS: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "parameters")


@dataclass(frozen=True, slots=True)
class _Position:
    """Replicas under a layout (None: none) on devices of one kind."""

    kind: int
    layout: int | None
    units: tuple[tuple[int, ...], ...]

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(itertools.chain.from_iterable(self.units))


def shaped_plans(problem: Problem, layouts: Sequence[Layout]) -> Iterator[Plan]:
    """Every such plan, legal or not."""
    for positions in every_meshes(problem, layouts):
        for edges in itertools.combinations(range(1, len(problem.graph.blocks)), len(positions) - 1):
            for sharding, schedule in itertools.product(SHARDINGS, SCHEDULES):
                if sharding == "none" or any(len(position.units) > 1 for position in positions):
                    yield from _plans(problem, layouts, positions, (0, *edges), sharding, schedule)


def _plans(
    problem: Problem, layouts: Sequence[Layout], positions: tuple[_Position, ...], firsts: tuple[int, ...],
    sharding: Sharding, schedule: ScheduleName,
) -> Iterator[Plan]:  # fmt: skip
    ends = (*firsts[1:], len(problem.graph.blocks))
    stages = tuple(
        Stage(
            first=first, last=last, devices=own.devices, layout=own.layout,
            degree=1 if own.layout is None else layouts[own.layout].degree,
            sharding=sharding if len(own.units) > 1 else "none",
        )
        for first, last, own in zip(firsts, ends, positions, strict=True)
    )  # fmt: skip
    most = max(len(own.units) for own in positions)
    for recompute in every_recompute(problem, len(stages)):
        for microbatches in every_microbatches(problem.rows, most):
            yield Plan(
                model=problem.model, graph=problem.graph, cluster=problem.cluster, settings=problem.settings,
                stages=tuple(replace(s, recompute=again) for s, again in zip(stages, recompute, strict=True)),
                schedule=schedule, microbatches=microbatches, seed=problem.seed,
                layouts=tuple(layouts),
            )  # fmt: skip


def every_recompute(problem: Problem, stages: int) -> Iterator[tuple[bool, ...]]:
    """Every stage with and without recompute, as the settings allow."""
    allowed = {"auto": (False, True), "none": (False,), "full": (True,)}[problem.settings.recompute]
    return itertools.product(allowed, repeat=stages)


def every_microbatches(rows: int, fewest: int = 1) -> Iterator[tuple[int, ...]]:
    """Equal microbatches, of at least the fewest rows, and a smaller last one."""
    for size in range(fewest, rows + 1):
        full, rest = divmod(rows, size)
        yield (size,) * full + ((rest,) if rest else ())


def every_meshes(problem: Problem, layouts: Sequence[Layout]) -> Iterator[tuple[_Position, ...]]:
    """Every sequence of two positions or more."""
    kinds = _kinds(problem.cluster)
    choices = [(None, 1), *((k, own.degree) for k, own in enumerate(layouts) if own.apart == 1)]

    def grown(before: tuple[_Position, ...]) -> Iterator[tuple[_Position, ...]]:
        yield before
        if len(before) == len(problem.graph.blocks):
            return
        for kind, (layout, degree) in itertools.product(range(len(kinds)), choices):
            visited = [position.kind for position in before]
            if kind in visited[:-1] and kind != visited[-1]:
                continue
            used = max((d for own in before if own.kind == kind for d in own.devices), default=-1)
            units = replica_groups(problem.cluster, degree)
            free = [unit for unit in units if set(unit) <= set(kinds[kind]) and min(unit) > used]
            for count in range(1, len(free) + 1):
                yield from grown((*before, _Position(kind, layout, tuple(free[:count]))))

    for found in grown(()):
        looks = {(position.kind, position.layout, len(position.units)) for position in found}
        if len(found) > 1 and len(looks) > 1:
            yield found


def _kinds(cluster: Cluster) -> list[list[int]]:
    """The devices of each kind: the same chip in the same kind of node, whatever is named how."""
    found: dict[int, list[int]] = {}
    looks = [device_look(cluster, device) for device in range(cluster.size)]
    for device, look in enumerate(looks):
        found.setdefault(looks.index(look), []).append(device)
    return list(found.values())
