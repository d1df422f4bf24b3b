"""The order in which gradients become ready in a backward, in which they are summed over replicas."""

from __future__ import annotations

from collections.abc import Iterator

from placer.graph import Graph


def ready_order(graph: Graph, first: int, last: int) -> tuple[str, ...]:
    """Trainable parameters of the blocks in the order their gradients become ready in backward.

    Backward runs ops in reverse; a gradient is complete at the parameter's first use in forward. The parameters of one
    op become ready in the order of its inputs, but for `linear`, whose bias comes before its transposed weight. Those
    that no op reads come last.
    """
    uses: dict[str, tuple[int, int]] = {}
    for position, names in enumerate(_uses(graph, first, last)):
        for place, name in enumerate(names):
            uses.setdefault(name, (-position, place))
    unread = (name for index in range(first, last) for name in graph.blocks[index].parameters if name not in uses)
    trained = (name for name in unread if graph.parameters[name].trainable and not graph.parameters[name].buffer)
    return (*sorted(uses, key=uses.__getitem__), *dict.fromkeys(trained))


def _uses(graph: Graph, first: int, last: int) -> Iterator[list[str]]:
    """The trainable parameters each op reads, op by op in forward order."""
    for index in range(first, last):
        block, kind = graph.blocks[index], graph.block_class(index)
        for op in kind.ops:
            local = [int(reference[1:]) for reference in op.inputs if reference.startswith("p")]
            if "linear" in op.target:
                local.reverse()
            yield [block.parameters[i] for i in local if kind.parameters[i].trainable and not kind.parameters[i].buffer]
