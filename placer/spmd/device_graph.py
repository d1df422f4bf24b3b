"""local_graph(graph, layout): the graph of one device of a replica, its ops of local sizes, collectives between them.

A conversion becomes an op of kind `communication` whose target names what happens forward and backward
(`placer.all_gather.reduce_scatter`; `-` where nothing moves) and whose written bytes are the whole buffer of each. What
an op communicates inside itself, and the rows a window wants of its neighbours, follow it as such ops too.

Of unequal pieces the graph is that of the rank in the middle, which has neighbours on both sides. Where each device has
rows of its own (`Layout.apart`), the sizes are counted in those.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from placer.errors import UsageError
from placer.graph import BlockClass, Graph
from placer.io.memo import once
from placer.plans.plan import Layout, Split
from placer.rules.expert_loads import overload, require_loads
from placer.rules.two_axis_layouts import middle
from placer.spmd.borrowed_numbers import borrowed_numbers
from placer.spmd.device_rows import own_rows
from placer.spmd.expert_order import expert_devices
from placer.spmd.layout_conversions import border_state
from placer.spmd.local_ops import LocalClass
from placer.spmd.parameter_layouts import class_edges, held_parameter, held_value

# Classes as one device has them, by their number, how they are split, the degree, and the parts of a replica's rows.
LocalClasses = dict[tuple[int, Split, int, int], BlockClass]


def local_graph(
    graph: Graph, layout: Layout, loads: tuple[float, ...] = (), *, balanced: bool = False,
    known: LocalClasses | None = None,
) -> Graph:  # fmt: skip
    """The graph of one device, of the most loaded one where experts have `loads`; `balanced`: as `local_op` has it;
    `known`: the classes of other layouts of this graph, with the same of both, to which those of this one are added.

    Raises UsageError for a layout that is not of this graph or cannot be, and for loads of other experts.
    """
    require_layout(graph, layout)
    require_loads(graph, loads)
    counted, known = own_rows(graph, layout.apart), {} if known is None else known
    classes = tuple(
        block_class if split is None
        else once(
            known, (number, split, layout.degree, layout.apart), _local_class, block_class, split, layout.degree,
            loads, balanced,
        )
        for number, (block_class, split) in enumerate(zip(counted.classes, layout.splits, strict=True))
    )  # fmt: skip
    return replace(counted, classes=classes)


def require_layout(graph: Graph, layout: Layout) -> None:
    """Raise UsageError where the layout is of another graph, or neighbours disagree about a value between them."""
    if any(known is graph and sound is layout for known, sound in _SOUND):
        return
    _require_layout(graph, layout)
    _SOUND.append((graph, layout))


# Those that were asked for last and are sound: searches ask for the same layouts again and again.
_SOUND: deque[tuple[Graph, Layout]] = deque(maxlen=64)


def _require_layout(graph: Graph, layout: Layout) -> None:
    if layout.degree < 1 or len(layout.splits) != len(graph.classes):
        raise UsageError(
            f"a layout over {layout.degree} devices splits {len(layout.splits)} block classes, "
            f"the model has {len(graph.classes)}; plan again"
        )
    inner = {split.inner for split in layout.splits if split is not None} - {1, layout.inner}
    if inner or layout.degree % layout.inner:
        raise UsageError(
            f"a layout over {layout.degree} devices has {layout.inner} along its inner axis, splits of it "
            f"{min(inner, default=layout.inner)}; plan again"
        )
    if others := borrowed_numbers(graph, layout.splits):
        raise UsageError(f"a layout over {layout.degree} devices: {others}; plan again")
    made: dict[str, str] = {}
    for index, block in enumerate(graph.blocks):
        split, block_class = layout.splits[block.kind], graph.classes[block.kind]
        inputs = ("whole",) * len(block_class.inputs) if split is None else split.inputs
        for reference, text in zip(block.inputs, inputs, strict=True):
            if made.get(reference, "whole") != text:
                raise UsageError(
                    f"block {block.name} takes {reference} as {text}, it is made as {made.get(reference, 'whole')}; "
                    "plan again"
                )
        outputs = ("whole",) * len(block_class.outputs) if split is None else split.outputs
        made |= {f"b{index}.{k}": text for k, text in enumerate(outputs)}


def _local_class(
    block_class: BlockClass, split: Split, degree: int, loads: tuple[float, ...], balanced: bool
) -> BlockClass:
    found = class_edges(block_class, split)
    load = overload(loads, split.experts, expert_devices(split, degree))
    ops, outputs = LocalClass(block_class, found, degree, load, balanced).made()
    stands = middle(degree, split.inner)
    inputs = tuple(
        held_value(tensor, border_state(text, split.inner), degree, stands)
        for tensor, text in zip(block_class.inputs, split.inputs, strict=True)
    )
    parameters = tuple(
        held_parameter(parameter, state, degree, stands)
        for parameter, state in zip(block_class.parameters, found.parameters, strict=True)
    )
    return replace(block_class, inputs=inputs, ops=ops, outputs=outputs, parameters=parameters)
