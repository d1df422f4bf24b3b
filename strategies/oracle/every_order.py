"""Every order of unlike devices and every way to share rows among unlike replicas, for the oracle: by trying all.

In: a Cluster and the Costs of one layout. Out: grids, the device group of each position and replica, out of all
permutations those that are built as `device_orders` says; and the shares of a microbatch. It shares no code with
`device_orders` and `row_shares`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from placer.cluster.cluster import Cluster
from placer.cluster.topology import replica_groups
from placer.costs.costs import Costs
from placer.errors import UsageError

MOST_KINDS = 3
MOST_WAYS = 16

DeviceGroup = tuple[int, ...]
# Units by position, then by replica.
Grid = tuple[tuple[DeviceGroup, ...], ...]


class DeviceGrids:
    """The units of a cluster and what kind each is of."""

    def __init__(self, cluster: Cluster, costs: Costs) -> None:
        self.kind = costs.block_times.device_class
        self.units = replica_groups(cluster, costs.degree)
        looks = [tuple(device_look(cluster, device) for device in unit) for unit in self.units]
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


def device_look(cluster: Cluster, device: int) -> object:
    """What a device looks like: its chip and its node, whatever the names and what the host has beside."""
    node = cluster.nodes[cluster.node_of[device]]
    return cluster.devices[device], replace(node, name="", cores=1, memory_bytes=0, storage=None)


def _distinct(looks: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [look for index, look in enumerate(looks) if look not in looks[:index]]


def _grid(units: Sequence[DeviceGroup], positions: int) -> Grid:
    each = len(units) // positions
    return tuple(tuple(units[p * each : (p + 1) * each]) for p in range(positions))
