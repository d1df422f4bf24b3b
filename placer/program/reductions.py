"""How replicas on several hosts sum: the ranks of a hierarchical sum, the messages of a server's.

A hierarchical sum is the one over hosts of `mixed_allreduce`, of ranks that have nothing to copy. A server gets every
other rank's tensor in pieces, adds them in the order of ranks, and sends each piece's sum to all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from placer.cluster.cluster import Cluster
from placer.costs.communication.reductions import GlooSum, piece_bytes, server_of
from placer.plans.plan import Plan, Reduction
from placer.program.mixed_allreduce import SumRoute

# How many pieces of each rank a server has room for: one arrives while it adds another.
ROOMS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRoute:
    """The rank that sums, and the others."""

    server: int
    served: tuple[int, ...]
    kind: Literal["server"] = "server"

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """No ranks beside all of them."""
        return ()


class PieceMessage(NamedTuple):
    """A message of the bytes from `start` to `end` (exclusive), to or from `rank`."""

    do: Literal["send", "receive"]
    rank: int
    start: int
    end: int


def reduction_route(
    cluster: Cluster, devices: tuple[int, ...], ranks: Sequence[int], way: Reduction
) -> SumRoute | ServerRoute | None:
    """How `ranks`, on `devices` of `cluster`, sum in this way; None where gloo does it by itself."""
    if way == "flat":
        return None
    if way == "server":
        server = ranks[server_of(cluster, devices)]
        return ServerRoute(server=server, served=tuple(rank for rank in ranks if rank != server))
    rank_of = dict(zip(devices, ranks, strict=True))
    hosts = tuple(tuple(rank_of[device] for device in host) for host in GlooSum(cluster, devices).hosts)
    return SumRoute(kind="hosts", accelerators=(), hosts=hosts, workers=())


def planned_route(plan: Plan, stage: int, ranks: Sequence[int]) -> SumRoute | ServerRoute | None:
    """How `ranks` sum a bucket of gradients of `stage`."""
    devices = tuple(plan.ranks[rank] for rank in ranks)
    return reduction_route(plan.cluster, devices, ranks, plan.stages[stage].reduction)


def pieces(size: int, item: int) -> tuple[tuple[int, int], ...]:
    """First and last (exclusive) byte of each piece of `size` bytes, of whole elements of `item` bytes."""
    step = max(1, piece_bytes(size) // item) * item
    return tuple((start, min(start + step, size)) for start in range(0, size, step))


def served_messages(way: ServerRoute, rank: int, size: int, item: int) -> Iterator[PieceMessage]:
    """The messages of `rank` in a server's sum of `size` bytes, in order of issue."""
    found = pieces(size, item)
    if rank != way.server:
        for start, end in found:
            yield PieceMessage("send", way.server, start, end)
            yield PieceMessage("receive", way.server, start, end)
        return
    coming = iter(found)
    for _ in range(min(ROOMS, len(found))):
        yield from _from_all(way, next(coming))
    for start, end in found:
        following = next(coming, None)
        if following is not None:
            yield from _from_all(way, following)
        yield from (PieceMessage("send", other, start, end) for other in way.served)


def _from_all(way: ServerRoute, piece: tuple[int, int]) -> Iterator[PieceMessage]:
    return (PieceMessage("receive", other, *piece) for other in way.served)
