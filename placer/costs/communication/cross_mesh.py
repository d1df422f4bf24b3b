"""Seconds of what crosses between two meshes: per microbatch the values on, the gradients back.

Between meshes that divide rows alike every device has one partner, and all send at once (`network.transfer`). Between
others a device may have several partners. It sends to them one after another, and receives from them one after another,
in the order of the program (`meshes.parcels`), each parcel of n bytes as soon as both ends are free:

    begin = max(sender free, receiver free - latency)    sender free = begin + n / bandwidth
    receiver free = max(begin + latency, receiver free) + n / bandwidth

and the exchange takes until the last receiver is done. So the simulator plays it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from placer.costs.communication.network import Network, TransferSeconds
from placer.costs.precision import Numerics
from placer.graph import Graph
from placer.spmd.cross_mesh import Crossing, Exchange, Mesh, Parcel, parcels
from placer.spmd.parameter_layouts import layout_state


class MeshMessages:
    """MeshMessages of values of `graph`, whole ones, over `channels`; remembers what crosses between which layouts."""

    def __init__(self, graph: Graph, numerics: Numerics, network: Network) -> None:
        self.graph = graph
        self.numerics = numerics
        self.network = network
        self._known: dict[object, tuple[object, Exchange]] = {}

    def alike(self, values: Iterable[str], source: Mesh, target: Mesh) -> bool:
        """Whether every device sends `values` to the one that stands like it on the other mesh."""
        if not source.like(target):
            return False
        if source.layout is target.layout:
            return True
        ends = [tuple(layout_state(self.graph, mesh.layout, v) for v in values) for mesh in (source, target)]
        return ends[0] == ends[1]

    def transfer(self, values: tuple[str, ...], source: Mesh, target: Mesh, rows: int) -> TransferSeconds:
        """Seconds of `values` of a microbatch of `rows` rows from `source` to `target`, and of their gradients back."""
        returned = tuple(value for value in values if self.graph.value(value).requires_grad)
        return TransferSeconds(
            forward=self.seconds(values, source, target, rows, gradient=False),
            backward=self.seconds(returned, target, source, rows, gradient=True),
        )

    def seconds(self, values: tuple[str, ...], source: Mesh, target: Mesh, rows: int, *, gradient: bool) -> float:
        """Seconds of one way."""
        if not values:
            return 0.0
        exchange = self._exchange(values, source, target)
        sent = tuple(parcels(exchange, source, target, rows, gradient=gradient))
        return self.network.exchange([(one.source, one.target, self._bytes(one, exchange.apart)) for one in sent])

    def _bytes(self, parcel: Parcel, apart: int) -> int:
        return sum(self.numerics.bytes_of(tensor, parcel.rows // apart) for tensor in parcel.bundle.tensors)

    def _exchange(self, values: tuple[str, ...], source: Mesh, target: Mesh) -> Exchange:
        key = (values, id(source.layout), id(target.layout), source.degree, target.degree)
        found = self._known.get(key)
        if found is None:
            graph = self.graph
            ends = [[layout_state(graph, mesh.layout, value) for value in values] for mesh in (source, target)]
            crossings = tuple(
                Crossing(value, graph.value(value), have, want) for value, have, want in zip(values, *ends, strict=True)
            )
            # The layouts are kept with it: what is gone may leave its id to another.
            kept = (source.layout, target.layout)
            found = self._known[key] = (kept, Exchange.between(crossings, source, target))
        return found[1]
