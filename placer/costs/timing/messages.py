"""Seconds of the messages after a stage: per microbatch the values on, the gradients back.

Between meshes that divide rows alike every device has one partner, and all send at once (`Network.transfer`). Between
others a device may have several partners. It sends to them one after another, and receives from them one after another,
in the order of the program (`spmd.cross_mesh.parcels`), each parcel of n bytes as soon as both ends are free:

    begin = max(sender free, receiver free - latency)    sender free = begin + n / bandwidth
    receiver free = max(begin + latency, receiver free) + n / bandwidth

and the exchange takes until the last receiver is done. So the simulator plays it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from placer.costs.communication.network import Network, TransferSeconds
from placer.costs.memory.block_ranges import BlockRanges
from placer.costs.timing.lanes import Lane, lane_of, lane_parcels
from placer.costs.workload import Workload
from placer.io.memo import once
from placer.plans.plan import Stage, replica_rows
from placer.rules.layouts import State
from placer.spmd.cross_mesh import Bundle, Crossing, Exchange, Mesh, parcels
from placer.spmd.parameter_layouts import layout_state


@dataclass(frozen=True, eq=False)
class StageMessages:
    """Messages between stages over `network`; remembers what crosses between which layouts."""

    work: Workload
    ranges: BlockRanges
    network: Network
    _exchanges: dict[object, tuple[object, _Known]] = field(default_factory=dict)
    #: Seconds by what crosses, whatever the values are called: alike at most cuts of a model of equal blocks.
    _known: dict[object, float] = field(default_factory=dict)
    _alike_ones: dict[object, _Known] = field(default_factory=dict)
    #: Bytes of so many rows of a bundle, which is kept, so that none leaves its id to another.
    _sizes: dict[tuple[int, int], tuple[Bundle, int]] = field(default_factory=dict)

    def mesh(self, stage: Stage, other: tuple[int, ...] | Mesh) -> Mesh:
        """The mesh of other devices, which are divided as those of `stage` where nothing else is said."""
        if isinstance(other, Mesh):
            return other
        return Mesh(devices=other, shares=stage.shares, degree=self.work.degree, layout=self.work.layout)

    def after(self, stage: Stage, following: Mesh, rows: int) -> TransferSeconds:
        """Seconds of what `stage` sends on to `following` for a microbatch of `rows` rows, and of what comes back."""
        if not following.devices or following.devices == stage.devices:
            return TransferSeconds()
        sending, values = self.mesh(stage, stage.devices), self.ranges.crossing.leaving(stage.first, stage.last)
        if not self._alike(values, sending, following):
            return self.between(stage, following, values, rows)
        span, most = self.ranges.of(stage.first, stage.last), max(replica_rows(rows, stage.shares, stage.replicas))
        if not span.messages:
            return TransferSeconds()
        returned_bytes = span.returned.at(most) if any(span.returned) else None
        return self.network.transfer(stage.devices, following.devices, sent=span.sent.at(most), returned=returned_bytes)

    def between(self, stage: Stage, target: Mesh, values: tuple[str, ...], rows: int) -> TransferSeconds:
        """Seconds of `values`, made in `stage`, on to `target` for a microbatch of `rows` rows, and back."""
        sending, most = self.mesh(stage, stage.devices), max(replica_rows(rows, stage.shares, stage.replicas))
        returned = tuple(value for value in values if self.work.whole.value(value).requires_grad)
        if not self._alike(values, sending, target):
            return TransferSeconds(
                forward=self._seconds(values, sending, target, rows, gradient=False),
                backward=self._seconds(returned, target, sending, rows, gradient=True),
            )
        crossing = self.ranges.crossing
        back = crossing.returned(values).at(most) if returned else None
        return self.network.transfer(
            stage.devices, target.devices, sent=crossing.bytes_of(values).at(most), returned=back
        )

    def _alike(self, values: tuple[str, ...], source: Mesh, target: Mesh) -> bool:
        """Whether every device sends `values` to the one that stands like it on the other mesh."""
        if not source.like(target):
            return False
        return source.layout is target.layout or self._states(values, source) == self._states(values, target)

    def _states(self, values: tuple[str, ...], mesh: Mesh) -> list[State]:
        """How values lie on a mesh."""
        return [layout_state(self.work.whole, mesh.layout, value) for value in values]

    def _seconds(self, values: tuple[str, ...], source: Mesh, target: Mesh, rows: int, *, gradient: bool) -> float:
        """Seconds of one direction."""
        if not values:
            return 0.0
        # The layouts are kept with it: what is gone may leave its id to another.
        key = (values, id(source.layout), id(target.layout), source.degree, target.degree)
        _, crossing = once(self._exchanges, key, self._exchange, values, source, target)
        divided = source.shares, source.degree, target.shares, target.degree
        told = crossing.number, divided, rows, gradient
        nodes = self._nodes(source, target)
        if not all(nodes):
            stand = self.network.footings.of(source.devices, target.devices)
            return once(self._known, (stand, told), self._played, crossing, source, target, rows, gradient)
        stand = self.network.footings.of_nodes(*nodes)
        if crossing.lane is None:
            return once(self._known, (stand, told), self._played, crossing, source, target, rows, gradient)
        return once(self._known, (stand, told), self._in_lane, crossing, source, target, rows, gradient)

    def _nodes(self, source: Mesh, target: Mesh) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nodes of the replicas at both ends."""
        nodes = self.network.nodes_of_replicas
        return nodes(source.devices, source.degree), nodes(target.devices, target.degree)

    def _in_lane(self, known: _Known, source: Mesh, target: Mesh, rows: int, gradient: bool) -> float:
        """What one lane takes."""
        assert known.lane is not None
        size = partial(self._bytes, known.exchange.apart)
        sent = lane_parcels(known.lane, source, target, rows, size, gradient=gradient)
        return self.network.lane_exchange(sent, *self._nodes(source, target), lanes=source.degree)

    def _played(self, known: _Known, source: Mesh, target: Mesh, rows: int, gradient: bool) -> float:
        each = parcels(known.exchange, source, target, rows, gradient=gradient)
        apart = known.exchange.apart
        return self.network.exchange([(a, b, self._bytes(apart, bundle, own)) for a, b, own, bundle in each])

    def _bytes(self, apart: int, bundle: Bundle, rows: int) -> int:
        """Bytes of so many rows of a replica, of which each device has one of `apart` parts."""
        known = self._sizes.get((id(bundle), rows))
        if known is None:
            each = zip(bundle.values, bundle.tensors, strict=True)
            found = sum(self.work.numerics.bytes_of(value, tensor, rows // apart) for value, tensor in each)
            known = self._sizes[id(bundle), rows] = bundle, found
        return known[1]

    def _exchange(self, values: tuple[str, ...], source: Mesh, target: Mesh) -> tuple[object, _Known]:
        ends = zip(values, self._states(values, source), self._states(values, target), strict=True)
        crossings = tuple(Crossing(value, self.work.whole.value(value), have, want) for value, have, want in ends)
        types = (self.work.numerics.crosses(one.value, one.tensor) for one in crossings)
        alike = tuple((one.tensor, one.have, one.want, dtype) for one, dtype in zip(crossings, types, strict=True))
        key = alike, source.degree, target.degree, source.apart
        return (source.layout, target.layout), once(self._alike_ones, key, self._made, crossings, source, target)

    def _made(self, crossings: tuple[Crossing, ...], source: Mesh, target: Mesh) -> _Known:
        exchange = Exchange.between(crossings, source, target)
        return _Known(exchange, lane_of(exchange), len(self._alike_ones))


class _Known(NamedTuple):
    """What crosses between two meshes, whatever it is called; the first of its lanes; its number among those known."""

    exchange: Exchange
    lane: Lane | None
    number: int
