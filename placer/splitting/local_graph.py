"""local_graph(graph, layout): the graph of one device of a replica, its ops of local sizes, collectives between them.

A conversion becomes an op of kind `communication` whose target names what happens forward and backward
(`placer.all_gather.reduce_scatter`; `-` where nothing moves) and whose written bytes are the whole buffer of each. What
an op communicates inside itself, and the rows a window wants of its neighbours, follow it as such ops too.

Of unequal pieces the graph is that of the rank in the middle, which has neighbours on both sides.
"""

from __future__ import annotations

from dataclasses import replace

from placer.errors import UsageError
from placer.graph import Affine, BlockClass, Graph, Parameter, Tensor
from placer.plans import Layout, Split
from placer.rules.layouts import Cut, State, piece
from placer.splitting.edges import border_state, edges
from placer.splitting.local_ops import LocalClass


def local_graph(graph: Graph, layout: Layout) -> Graph:
    """The graph of one device. Raises UsageError for a layout that is not of this graph or cannot be."""
    require_layout(graph, layout)
    classes = tuple(
        kind if split is None else _local_class(kind, split, layout.degree)
        for kind, split in zip(graph.classes, layout.splits, strict=True)
    )
    return replace(graph, classes=classes)


def require_layout(graph: Graph, layout: Layout) -> None:
    """Raise UsageError where the layout is of another graph, or neighbours disagree about a value between them."""
    if layout.degree < 1 or len(layout.splits) != len(graph.classes):
        raise UsageError(
            f"a layout over {layout.degree} devices splits {len(layout.splits)} block classes, "
            f"the model has {len(graph.classes)}; plan again"
        )
    made: dict[str, str] = {}
    for index, block in enumerate(graph.blocks):
        split, kind = layout.splits[block.kind], graph.classes[block.kind]
        inputs = ("whole",) * len(kind.inputs) if split is None else split.inputs
        for reference, text in zip(block.inputs, inputs, strict=True):
            if made.get(reference, "whole") != text:
                raise UsageError(
                    f"block {block.name} takes {reference} as {text}, it is made as {made.get(reference, 'whole')}; "
                    "plan again"
                )
        outputs = ("whole",) * len(kind.outputs) if split is None else split.outputs
        made |= {f"b{index}.{k}": text for k, text in enumerate(outputs)}


def _local_class(kind: BlockClass, split: Split, degree: int) -> BlockClass:
    found = edges(kind, split)
    made = LocalClass(kind, found, degree)
    inputs = tuple(
        local_tensor(tensor, border_state(text), degree) for tensor, text in zip(kind.inputs, split.inputs, strict=True)
    )
    parameters = tuple(
        _local_parameter(parameter, state, degree)
        for parameter, state in zip(kind.parameters, found.parameters, strict=True)
    )
    return BlockClass(inputs=inputs, ops=made.ops, outputs=made.outputs, parameters=parameters)


def _local_parameter(parameter: Parameter, state: State, degree: int) -> Parameter:
    if not isinstance(state.value, Cut):
        return replace(parameter, summed=state.gradient != state.value)
    start, end = piece(parameter.shape[state.value.dim], degree, middle(degree))
    dim = state.value.dim
    return replace(parameter, shape=(*parameter.shape[:dim], end - start, *parameter.shape[dim + 1 :]))


def local_tensor(tensor: Tensor, state: State, degree: int) -> Tensor:
    """The piece of a value that one rank has."""
    if not isinstance(state.value, Cut):
        return tensor
    dim = state.value.dim
    start, end = piece(tensor.shape[dim].fixed, degree, middle(degree))
    return replace(tensor, shape=(*tensor.shape[:dim], Affine(end - start), *tensor.shape[dim + 1 :]))


def middle(degree: int) -> int:
    """The rank whose pieces stand for all."""
    return degree // 2
