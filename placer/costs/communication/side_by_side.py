"""Collectives that run at once: how many of them share what leads out of a node, or the memory of one.

The devices that stand alike in their replicas sum together, and all of these lines do so at once. A tied parameter is
summed over those of two positions: whole ones over all replicas of both, `degree` lines; shards of it over the holders
of each shard, as many lines as a position has devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from placer.cluster.cluster import Cluster

Line = tuple[int, ...]


def tied_lines(leading: Line, own: Line, degree: int, *, by_shard: bool) -> tuple[Line, ...]:
    """The lines in which two positions, of replicas of `degree` devices, sum a tied parameter; first those of the
    first devices of replicas are every `degree`-th."""
    if by_shard:
        return tuple(tuple(dict.fromkeys(both)) for both in zip(leading, own, strict=True))
    return tuple(tuple(dict.fromkeys((*leading[i::degree], *own[i::degree]))) for i in range(degree))


def side_by_side(cluster: Cluster, lines: Sequence[Line]) -> tuple[int, ...]:
    """Of each of these lines of devices, how many lie on the node where most do: of those through several nodes, which
    share what leads out of it, or of those within one."""
    reached = [frozenset(cluster.node_of[device] for device in line) for line in lines]
    found = Counter((node, len(nodes) > 1) for nodes in reached for node in nodes)
    return tuple(max(found[node, len(nodes) > 1] for node in nodes) for nodes in reached)
