"""Every way to lie on devices, for the oracle: by trying all. It shares no code with `space` and `submeshes`.

grids           every order of unlike devices: the device group of each position and replica, out of all permutations
                those that are built as `device_orders` says
shares          every way to share rows among unlike replicas
shaped_plans    every plan of two positions or more, each with a number of replicas and a layout of its own, on like
                devices of like nodes, behind those of the position before it or on others not used yet; those whose
                positions are all alike on devices of one kind are of `exhaustive`
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placer.cluster.cluster import Cluster
from placer.cluster.topology import replica_groups
from placer.costs.costs import Costs
from placer.errors import UsageError
from placer.plans.plan import Layout, Plan, Recompute, ScheduleName, Sharding, Stage
from placer.search.problem import Problem

MOST_KINDS = 3
MOST_WAYS = 16

DeviceGroup = tuple[int, ...]
# Device groups by position, then by replica.
Grid = tuple[tuple[DeviceGroup, ...], ...]


class DeviceGrids:
    """The device groups of a cluster and what kind each is of."""

    def __init__(self, cluster: Cluster, costs: Costs) -> None:
        self.kind = costs.block_times.device_class
        self.units = replica_groups(cluster, costs.degree)
        looks = [tuple(_look(cluster, device) for device in unit) for unit in self.units]
        self.members = [
            [u for u, own in zip(self.units, looks, strict=True) if own == look] for look in _distinct(looks)
        ]
        if len(self.members) > MOST_KINDS:
            raise UsageError(
                f"exhaustive search was asked for {len(self.members)} kinds of devices, it takes {MOST_KINDS}; "
                "use the strategy stages"
            )

    def grids(self, positions: int, replicas: int) -> Iterator[Grid]:
        """The first units in order, and of unlike ones every other order that is searched."""
        plain = _grid(self.units[: positions * replicas], positions)
        yield plain
        if len(self.members) == 1:
            return
        for order in itertools.permutations(self.units, positions * replicas):
            grid = _grid(order, positions)
            if grid != plain and self._is_searched(grid):
                yield grid

    def shares(self, grid: Grid, rows: int) -> Iterator[tuple[int, ...]]:
        """Equal shares (empty); every other way in whole rows where replicas differ, alike ones never ascending."""
        yield ()
        count = len(grid[0])
        looks = [tuple(self.kind[units[replica][0]] for units in grid) for replica in range(count)]
        if len(set(looks)) == 1 or rows < count:
            return
        if math.comb(rows - 1, count - 1) > MOST_WAYS:
            raise UsageError(
                f"exhaustive search was asked to share {rows} rows among {count} unlike replicas: more than "
                f"{MOST_WAYS} ways; use the strategy stages"
            )
        for each in itertools.product(range(1, rows + 1), repeat=count):
            pairs = itertools.combinations(range(count), 2)
            if sum(each) == rows and all(each[i] >= each[j] for i, j in pairs if looks[i] == looks[j]):
                yield each

    def _is_searched(self, grid: Grid) -> bool:
        """Whether a grid is packed, or of positions each of one kind, or of replicas each of one kind."""
        flat = [[unit] for units in grid for unit in units]
        columns = [list(units) for units in zip(*grid, strict=True)]
        return self._is_run(flat) or self._is_run([list(units) for units in grid]) or self._is_run(columns)

    def _is_run(self, parts: Sequence[list[DeviceGroup]]) -> bool:
        """Whether parts of one kind each stand together, take its units in order, and all it has but for the last."""
        kinds = [self._kind_of(part) for part in parts]
        runs = [(kind, len(list(run))) for kind, run in itertools.groupby(kinds)]
        if None in kinds or len({kind for kind, _ in runs}) < len(runs):
            return False
        taken, size = 0, len(parts[0])
        for number, (kind, length) in enumerate(runs):
            assert kind is not None
            own = [unit for part in parts[taken : taken + length] for unit in part]
            taken += length
            if own != self.members[kind][: len(own)]:
                return False
            if number < len(runs) - 1 and length != len(self.members[kind]) // size:
                return False
        return True

    def _kind_of(self, part: list[DeviceGroup]) -> int | None:
        """The kind of all units of a part; None where they differ."""
        return next((k for k, own in enumerate(self.members) if all(unit in own for unit in part)), None)


def _look(cluster: Cluster, device: int) -> object:
    """What a device looks like: its chip and its node, whatever the names and what the host has beside."""
    node = cluster.nodes[cluster.node_of[device]]
    return cluster.devices[device], replace(node, name="", cores=1, memory_bytes=0, storage=None)


def _distinct(looks: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [look for index, look in enumerate(looks) if look not in looks[:index]]


def _grid(units: Sequence[DeviceGroup], positions: int) -> Grid:
    each = len(units) // positions
    return tuple(tuple(units[p * each : (p + 1) * each]) for p in range(positions))


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


def every_recompute(problem: Problem, stages: int) -> Iterator[tuple[Recompute, ...]]:
    """Every stage with and without recompute, as the settings allow."""
    allowed: dict[str, tuple[Recompute, ...]] = {
        "auto": (False, "selective", True), "none": (False,), "selective": ("selective",), "full": (True,),
    }  # fmt: skip
    return itertools.product(allowed[problem.settings.recompute], repeat=stages)


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
    looks = [_look(cluster, device) for device in range(cluster.size)]
    for device, look in enumerate(looks):
        found.setdefault(looks.index(look), []).append(device)
    return list(found.values())
