"""A captured model with more layers: what a capture at that depth gives, without another export.

Repeated layers share one class in a `Graph`, so that a deeper model is a longer list of blocks. A new layer reads the
layer before it where its pattern does, and what that layer hands on is read by whoever read the pattern's result.

    [embedding, layer 0, layer 1, layer 2, layer 3, head] --deepened(6 layers)--> [embedding, layer 0 .. layer 5, head]
"""

from __future__ import annotations

from dataclasses import replace

from placer.graph import Block, Graph


def deepened(graph: Graph, layers: int) -> Graph:
    """`graph` with its longest run of equal blocks made `layers` long, by copies of its last one.

    Each layer reads only the one before it, model inputs and the prologue; block names carry the layer's number.
    """
    first, last = _longest_run(graph)
    if last - first < 2:
        raise ValueError(f"{graph.name} has no two equal blocks in a row, so that nothing tells how its layers repeat")
    grown = layers - (last - first)
    if grown < 0:
        raise ValueError(f"the model has {last - first} layers already; capture one with fewer than {layers}")
    copies = [_shifted(graph.blocks[last - 1], by, last - first - 1) for by in range(1, grown + 1)]
    behind = [replace(block, inputs=_moved(block.inputs, last - 1, grown)) for block in graph.blocks[last:]]
    return replace(
        graph,
        blocks=(*graph.blocks[:last], *copies, *behind),
        outputs=_moved(graph.outputs, last - 1, grown),
        loss=replace(graph.loss, value=_moved((graph.loss.value,), last - 1, grown)[0]),
    )


def _longest_run(graph: Graph) -> tuple[int, int]:
    """First and last (exclusive) block of the longest run of one class."""
    kinds = [block.kind for block in graph.blocks]
    best = (0, 1)
    start = 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] != kinds[start]:
            best = max(best, (start, index), key=lambda run: run[1] - run[0])
            start = index
    return best


def _shifted(layer: Block, by: int, number: int) -> Block:
    """The layer `by` places further on; `number` is its own in its list."""
    old, new = f".{number}", f".{number + by}"
    return replace(
        layer,
        name=layer.name.replace(old, new),
        inputs=_moved(layer.inputs, 0, by),
        parameters=tuple(name.replace(f"{old}.", f"{new}.") for name in layer.parameters),
    )


def _moved(references: tuple[str, ...], start: int, by: int) -> tuple[str, ...]:
    """References with every block from `start` on `by` further back in the row."""
    return tuple(_later(reference, by) if _block(reference) >= start else reference for reference in references)


def _block(reference: str) -> int:
    """The block a reference names; -1 for the prologue and inputs of the model."""
    return int(reference[1:].split(".")[0]) if reference.startswith("b") else -1


def _later(reference: str, by: int) -> str:
    return f"b{_block(reference) + by}.{reference.split('.')[1]}"
