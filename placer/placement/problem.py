"""A graph with given costs, the devices it is placed on, and a placement of it.

Times are in the problem's own `unit` (the files of this family are in milliseconds) so that a published value can be
compared to the last digit; sizes are bytes. Device `d` is an accelerator for d < accelerators and a CPU after that.

What a solver of placement files returns: a placement and a bound, both still to be judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from placer.errors import UsageError

# Between these, products and ratios of a problem's times are numbers.
LEAST_TOTAL, MOST_TOTAL = 1e-150, 1e150


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementNode:
    """An operator or layer: its time on an accelerator and on a CPU, its bytes, what its output costs to move.

    `send` is the time to move its output between an accelerator and host memory. Nodes of one `colour` share a device.
    """

    name: str
    accelerator: float
    host: float
    size: float = 0.0
    send: float = 0.0
    supported: bool = True
    backward: bool = False
    colour: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlacementProblem:
    """Nodes, edges (indices into `nodes`) and devices. Raises UsageError for edges outside the nodes and bad costs."""

    nodes: tuple[PlacementNode, ...]
    edges: tuple[tuple[int, int], ...]
    accelerators: int
    cpus: int
    memory: float
    unit: str = "ms"
    format: str = "dnn-partitioning"

    def __post_init__(self) -> None:
        if self.accelerators < 0 or self.cpus < 0 or self.accelerators + self.cpus == 0:
            raise UsageError(
                f"a placement was asked for on {self.accelerators} accelerators and {self.cpus} CPUs; give at least 1"
            )
        if not self.nodes:
            raise UsageError("a placement was asked for of a graph without nodes; give at least 1 node")
        for name, count in Counter(node.name for node in self.nodes).items():
            if count > 1:
                raise UsageError(f"node {name} occurs {count} times; give every node an id of its own")
        self._require_reckonable()

    def _require_reckonable(self) -> None:
        total = sum(max(node.accelerator, node.host) + node.send for node in self.nodes)
        if total and not LEAST_TOTAL <= total <= MOST_TOTAL:
            raise UsageError(
                f"the times of all nodes add up to {total:.3g} {self.unit}, from which sums and ratios can leave "
                f"the range of numbers; state them in a unit in which that is {LEAST_TOTAL:g} to {MOST_TOTAL:g}"
            )

    @property
    def devices(self) -> int:
        """How many devices there are, accelerators first."""
        return self.accelerators + self.cpus

    @cached_property
    def successors(self) -> tuple[frozenset[int], ...]:
        """For each node, the nodes that read its output."""
        found: list[set[int]] = [set() for _ in self.nodes]
        for source, target in self.edges:
            found[source].add(target)
        return tuple(frozenset(targets - {node}) for node, targets in enumerate(found))

    def device_name(self, device: int) -> str:
        """`accelerator0`, `accelerator1`, ..., `cpu0`, ..."""
        is_accelerator = device < self.accelerators
        return f"accelerator{device}" if is_accelerator else f"cpu{device - self.accelerators}"


# The device of every node, in the order of the problem's nodes.
Placement = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedPlacement:
    """`placement` is None where none was found; `bound` is then infinite if that was proved. `notes` for people."""

    placement: Placement | None
    bound: float
    notes: tuple[str, ...] = ()
