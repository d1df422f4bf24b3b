"""What messages between positions take: ports, and between nodes the way out of the one and into the other.

In: of each kind of message its sending and its receiving position, and their devices. Out: the ways of each, numbered.

A position sends one message at a time and gets one at a time. All of its devices send at once, which the seconds of a
message count (`Network`), so that those of several replicas do not wait for each other, but for what the devices like
them at other positions send through the same node. Ways that the same messages take are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.costs.communication.network import Network
from placer.costs.timing.played import Wire

# A port, or what leads out of or into a node for the devices at one place in their positions.
_Way = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Ways:
    """Numbers of what a message occupies at its sender's end, and at its receiver's."""

    leaving: tuple[int, ...]
    arriving: tuple[int, ...]

    def wire(self, seconds: float, latency: float) -> Wire:
        """A message of so many seconds, of which the first byte takes `latency`."""
        return Wire(min(latency, seconds), max(0.0, seconds - latency), self.leaving, self.arriving)


def ways(ends: Sequence[tuple[int, int]], devices: Sequence[tuple[int, ...]], network: Network) -> list[Ways]:
    """The ways of messages between the positions that `ends` says, each on its devices."""
    taken: dict[_Way, list[int]] = {}
    for number, (source, target) in enumerate(ends):
        taken.setdefault(("send", source, 0), []).append(number)
        taken.setdefault(("receive", target, 0), []).append(number)
        for out, into in _between_nodes(devices[source], devices[target], network):
            taken.setdefault(out, []).append(number)
            taken.setdefault(into, []).append(number)
    found: list[tuple[dict[int, None], dict[int, None]]] = [({}, {}) for _ in ends]
    numbers: dict[tuple[bool, tuple[int, ...]], int] = {}
    for (kind, _, _), messages in taken.items():
        arriving = kind in ("receive", "in")
        way = numbers.setdefault((arriving, tuple(messages)), len(numbers))
        for message in messages:
            found[message][arriving][way] = None
    return [Ways(tuple(leaving), tuple(arriving)) for leaving, arriving in found]


def _between_nodes(source: tuple[int, ...], target: tuple[int, ...], network: Network) -> dict[tuple[_Way, _Way], None]:
    """The way out and the way in of each sender whose receiver is on another node; of unlike many, partners in turn."""
    node_of = network.cluster.node_of
    partners = (target[place * len(target) // len(source)] for place in range(len(source)))
    nodes = [(node_of[one], node_of[other]) for one, other in zip(source, partners, strict=True)]
    return {
        (("out", start, place), ("in", end, place)): None for place, (start, end) in enumerate(nodes) if start != end
    }
