"""The nodes of a traced graph beside the ops of a plan's graph, and what a piece of the batch does otherwise there."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import fx

from placer.graph import Graph
from placer.rules.rows import PieceOp, row_split
from placer.tracer.export.symbolic_rows import is_size


@dataclass(frozen=True, kw_only=True)
class PieceNodes:
    """What `placer.rules.rows` says of the nodes; the others are done as they are."""

    ops: Mapping[fx.Node, PieceOp] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph, traced: fx.Graph, block_of: Mapping[str, int]) -> PieceNodes:
        """Those of a captured graph and its trace."""
        found = row_split(graph).ops
        nodes = {index: op_nodes(traced, block_of, index) for index in {block for block, _ in found}}
        return PieceNodes(ops={nodes[block][number]: op for (block, number), op in found.items()})

    def shared(self, node: fx.Node) -> frozenset[fx.Node]:
        """The tensors that `node` takes times the piece's share of the rows."""
        return self._named(node, self.ops[node].shared) if node in self.ops else frozenset()

    def totalled(self, node: fx.Node) -> frozenset[fx.Node]:
        """The tensors of which `node` takes the sum over all pieces."""
        return self._named(node, self.ops[node].totalled) if node in self.ops else frozenset()

    def averages(self, node: fx.Node) -> str:
        """Whether the result of `node` counts by the piece's share of the `rows`, or of the `labels`."""
        return self.ops[node].mean if node in self.ops else ""

    def adds_number(self, node: fx.Node) -> bool:
        """Whether the number that `node` takes beside a tensor counts by the piece's share of the rows."""
        return node in self.ops and self.ops[node].number

    def fills_in_turn(self, node: fx.Node) -> bool:
        """Whether `node` fills places one after another, each row's with its own numbers."""
        return node in self.ops and self.ops[node].in_turn

    @cached_property
    def totals(self) -> tuple[fx.Node, ...]:
        """All tensors of which a sum over all pieces is taken, in order."""
        return tuple(
            dict.fromkeys(one for node in self.ops for one in tensor_nodes(node) if one in self.totalled(node))
        )

    @staticmethod
    def _named(node: fx.Node, numbers: tuple[int, ...]) -> frozenset[fx.Node]:
        return frozenset(one for at, one in enumerate(tensor_nodes(node)) if at in numbers)


def op_nodes(graph: fx.Graph, block_of: Mapping[str, int], index: int) -> list[fx.Node]:
    """The nodes of a block that are ops of its class, in order; `getitem` only names a result."""
    return [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and block_of.get(node.name) == index
        and node.target is not operator.getitem
        and not is_size(node)
    ]


def tensor_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """The tensors an op takes, in the order of a choice's states; one given twice comes twice."""

    def visit(argument: object) -> Iterator[fx.Node]:
        if isinstance(argument, fx.Node) and not is_size(argument):
            yield argument
        elif isinstance(argument, list | tuple):
            for part in argument:
                yield from visit(part)

    for argument in (*node.args, *node.kwargs.values()):
        yield from visit(argument)
