"""How devices stand to each other: sets of devices that stand alike have equal seconds, wherever they are.

In: a Cluster and tuples of devices. Out: a number for each that tuples share whose devices, one by one, are on the same
node as the same others, and the same as the same others. It is so where all nodes are alike and one level joins them;
of other clusters only equal tuples share a number. Searches move positions of a plan about: most stand as one did that
is priced already.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count

from placer.cluster.cluster import Cluster
from placer.io.memo import remembered


@dataclass(frozen=True, eq=False)
class Footings:
    """Numbers of how devices of `cluster` stand; remembers them."""

    cluster: Cluster
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    @cached_property
    def even(self) -> bool:
        """Whether all nodes are alike, their devices too, and all ways between two of them."""
        alike = len(self.cluster.groups) == 1 and len(self.cluster.groups[0][0].devices) == 1
        return alike and len(self.cluster.levels) <= 1

    @remembered
    def of(self, *groups: tuple[int, ...]) -> int:
        """The number of these groups of devices, in this order."""
        found = self._placed(groups) if self.even else groups
        return self._numbers.setdefault(found, len(self._numbers))

    @remembered
    def of_nodes(self, *groups: tuple[int, ...]) -> int:
        """The number of these groups of nodes, in this order: shared where the same of them are the same, and all ways
        alike."""
        found = (tuple(map(len, groups)), _numbered(tuple(chain(*groups)))) if self.even else groups
        return self._numbers.setdefault(("nodes", found), len(self._numbers))

    def _placed(self, groups: tuple[tuple[int, ...], ...]) -> Hashable:
        runs = [self._run(devices) for devices in groups]
        if all(runs):
            return self._runs([run for run in runs if run is not None])
        nodes, devices = self.cluster.node_of, tuple(chain(*groups))
        return tuple(map(len, groups)), _numbered(tuple([nodes[device] for device in devices])), _numbered(devices)

    @remembered
    def _run(self, devices: tuple[int, ...]) -> tuple[int, int] | None:
        """The first of devices that follow each other and how many they are; None of others."""
        first, size = devices[0] if devices else 0, len(devices)
        return (first, size) if devices == tuple(range(first, first + size)) else None

    def _runs(self, runs: list[tuple[int, int]]) -> Hashable:
        """Where each run begins in its node, from the first node on as far as they have nodes in common."""
        size = self.cluster.groups[0][0].size
        nodes = [range(first // size, (first + max(count, 1) - 1) // size + 1) for first, count in runs]
        apart = all(a.stop <= b.start or b.stop <= a.start for i, a in enumerate(nodes) for b in nodes[:i])
        base = runs[0][0] // size * size
        return tuple((first % size if apart else first - base, count) for first, count in runs), apart


def _numbered(values: tuple[int, ...]) -> tuple[int, ...]:
    """Each value by the number of those before it, so that tuples of other values repeated alike are equal."""
    order = dict(zip(dict.fromkeys(values), count(), strict=False))
    return tuple(map(order.__getitem__, values))
