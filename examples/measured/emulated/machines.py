"""The clusters that are emulated: nodes with their devices' share of a core and the rate of their link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`devices` processes, each with `share` of a core, behind one link of `megabits` per second."""

    share: float
    megabits: float
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Nodes in order; devices are numbered over them."""

    name: str
    nodes: tuple[Node, ...]

    @property
    def size(self) -> int:
        """Devices."""
        return sum(node.devices for node in self.nodes)

    @property
    def node_of(self) -> tuple[int, ...]:
        """The node of each device."""
        return tuple(index for index, node in enumerate(self.nodes) for _ in range(node.devices))

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of a core of each device."""
        return tuple(node.share for node in self.nodes for _ in range(node.devices))

    def with_slow_link(self, node: int, times: float) -> Machines:
        """The same, one node's link slower."""
        return self._with(node, megabits=self.nodes[node].megabits / times)

    def with_slow_node(self, node: int, times: float) -> Machines:
        """The same, one node's devices slower."""
        return self._with(node, share=self.nodes[node].share / times)

    def __str__(self) -> str:
        return "; ".join(_told(node) for node in self.nodes)

    def _with(self, node: int, **changed: float) -> Machines:
        one = replace(self.nodes[node], **changed)  # type: ignore[arg-type]  # both fields are floats
        return replace(self, nodes=(*self.nodes[:node], one, *self.nodes[node + 1 :]))


def _told(node: Node) -> str:
    return f"{node.devices} x {node.share:g} of a core, {node.megabits:g} Mbit/s"


def every() -> Iterator[Machines]:
    """The clusters of the table: unequal nodes, unequal links, and both with several devices in a node."""
    yield Machines(name="nodes", nodes=(Node(share=0.5, megabits=500), *(Node(share=0.25, megabits=500),) * 2))
    yield Machines(
        name="links",
        nodes=(*(Node(share=0.25, megabits=800),) * 2, Node(share=0.25, megabits=200), Node(share=0.25, megabits=100)),
    )
    yield Machines(
        name="mixed",
        nodes=(Node(share=0.3, megabits=800, devices=2), Node(share=0.3, megabits=300), Node(share=0.15, megabits=150)),
    )


CLUSTERS = {machines.name: machines for machines in every()}
