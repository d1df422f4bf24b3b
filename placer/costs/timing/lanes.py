"""Lanes: where each device of a replica speaks to none but the one at its place in other replicas.

In: an Exchange and the two meshes. Out: what one of the lanes sends, from replica to replica. All of them send the same
at the same time, so that one is played for all. It is so where replicas are of one degree, a part of a value goes to
the place that it comes from, and each place sends as much as the next; of other exchanges every parcel is played.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placer.spmd.cross_mesh import Bundle, Exchange, Mesh, overlaps


@dataclass(frozen=True, slots=True)
class Lane:
    """What the first device of a replica sends to the first of another (None: nothing): with the first rows of that
    replica which opens the exchange, and with others."""

    opening: Bundle | None
    within: Bundle | None


def lane_of(exchange: Exchange) -> Lane | None:
    """The first of the lanes of an exchange; None where devices do not all do alike."""
    both = exchange.bundles(True), exchange.bundles(False)
    if exchange.source != exchange.target or not all(_alike(bundles, exchange.source) for bundles in both):
        return None
    opening, within = (bundles[0] if bundles else None for bundles in both)
    return Lane(opening, within)


def _alike(bundles: tuple[Bundle, ...], degree: int) -> bool:
    """Whether each of `degree` devices sends the same to the one like it, or none sends anything."""
    places = [(bundle.source, bundle.target) for bundle in bundles]
    each = [(at, at) for at in range(degree)]
    return not bundles or (places == each and all(one.tensors == bundles[0].tensors for one in bundles))


def lane_parcels(
    lane: Lane, source: Mesh, target: Mesh, rows: int, size: Callable[[Bundle, int], int], *, gradient: bool
) -> list[tuple[int, int, int]]:
    """(sending replica, receiving replica, bytes) of a microbatch of `rows` rows, in the order in which it is sent.

    size: bytes of so many rows of a replica in a bundle.
    """
    found: list[tuple[int, int, int]] = []
    sizes: dict[tuple[bool, int], int] = {}
    for replica, reader, first, last, opens_source, opens_target in overlaps(rows, source.division, target.division):
        opens = opens_source if gradient else opens_target
        bundle = lane.opening if opens else lane.within
        if bundle is None:
            continue
        key = opens, last - first
        if key not in sizes:
            sizes[key] = size(bundle, last - first)
        found.append((replica, reader, sizes[key]))
    return found
